//! The dataplane of the testbed: a switch and an RDMA NIC as sans-IO state machines, the fabric that joins them,
//! and the two media that carry frames between them: memory (the `simulate` engine) and packet sockets on veth links
//! (the `emulate` engine).
//!
//! - [`wire`]: packet formats, without state.
//! - [`switch`], [`nic`]: state machines. They are given a frame or a timer with the current fabric time and return
//!   [`effect::Effect`]s; they read no clock, open no socket and draw from no global random source.
//! - [`fabric`]: nodes, links and the event queue, whose order is total and documented.
//! - [`medium`]: how frames get from one end of a link to the other.

pub mod capture;
pub mod effect;
pub mod fabric;
pub mod frame;
pub mod impair;
pub mod medium;
pub mod nic;
pub mod packet_socket;
mod queue;
pub mod switch;
pub mod time;
pub mod tx;
pub mod veth;
pub mod wire;

#[cfg(feature = "python")]
mod python;
