//! The Python module `testbed._dataplane`.
//!
//! Everything is said in plain values: nodes and ports by number, times in picoseconds (`_ps`), columns of result
//! tables as little-endian bytes for `numpy.frombuffer`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::effect::{DropReason, EventKind};
use crate::fabric::{Control, Fabric, Node, Stop};
use crate::frame::Frame;
use crate::impair::Impairment;
use crate::medium::MemoryMedium;
use crate::nic::{DcqcnParams, Nic, QpConfig, StormSpec};
use crate::packet_socket::PacketSocket;
use crate::switch::{
    Action, Admission, Bucket, EcnProfile, Field, Flow, FlowFilter, GroupKind, Match, Mmu,
    MmuConfig, Output, PortConfig, QueueConfig, Service, Shaper, Switch, SwitchConfig, TableError,
    Threshold, WatchdogAction, WatchdogConfig, TABLES,
};
use crate::time::{Rate, Time};
use crate::tx::{PauseResponse, PRIORITIES};
use crate::veth::VethMedium;
use crate::wire::{icrc_of_frame, Headers, Packet};

create_exception!(
    _dataplane,
    OpenFlowError,
    PyException,
    "A change of a flow table or group was refused; the message is OpenFlow's name for the reason."
);

const OFPP_IN_PORT: u32 = 0xffff_fff8;
const OFPP_CONTROLLER: u32 = 0xffff_fffd;
/// Longest message of RC (IBTA specification volume 1, section 9.7.7).
const LONGEST_MESSAGE_BYTES: u64 = 1 << 31;
/// No NIC's timers are finer than this, and finer ones would only cost time.
const LEAST_TIMER_PS: u64 = 1000;
/// Longest `run` that is waited for in one call.
const LONGEST_BUDGET_MS: u64 = 60_000;

fn refuse(error: TableError) -> PyErr {
    OpenFlowError::new_err(error.to_string())
}

/// Settings of a switch, from a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct SwitchSpec {
    mac: [u8; 6],
    seed: u64,
    buffer_bytes: u64,
    lossless: u8,
    reserved_bytes: u64,
    xoff_bytes: Option<u64>,
    alpha: f64,
    xon_offset_bytes: u64,
    lossy_alpha: f64,
    cell_bytes: u64,
    pfc: bool,
    pfc_quanta: u16,
    dscp_map: [u8; 64],
    pcp_map: [u8; 8],
    cut_through: bool,
    pipeline_latency_ps: u64,
    /// (detection time, restoration time, poll interval, action).
    watchdog: Option<(u64, u64, u64, String)>,
}

impl SwitchSpec {
    fn config(self) -> PyResult<SwitchConfig> {
        let watchdog = self.watchdog.map(|(detection, restoration, poll, action)| {
            let action = match action.as_str() {
                "drop" => WatchdogAction::Drop,
                "forward" => WatchdogAction::Forward,
                "alert" => WatchdogAction::Alert,
                _ => {
                    return Err(PyValueError::new_err(
                        "a watchdog drops, forwards or alerts",
                    ))
                }
            };
            Ok(WatchdogConfig {
                detection_time: Time(detection),
                restoration_time: Time(restoration),
                poll_interval: Time(poll.max(LEAST_TIMER_PS)),
                action,
            })
        });
        Ok(SwitchConfig {
            watchdog: watchdog.transpose()?,
            mac: self.mac,
            mmu: MmuConfig {
                buffer_bytes: self.buffer_bytes,
                lossless: self.lossless,
                reserved_bytes: self.reserved_bytes,
                threshold: match self.xoff_bytes {
                    Some(bytes) => Threshold::Static(bytes),
                    None => Threshold::Dynamic(self.alpha),
                },
                xon_offset_bytes: self.xon_offset_bytes,
                lossy_alpha: self.lossy_alpha,
                cell_bytes: self.cell_bytes,
            },
            pfc: self.pfc,
            pfc_quanta: self.pfc_quanta,
            dscp_map: self.dscp_map,
            pcp_map: self.pcp_map,
            seed: self.seed,
            cut_through: self.cut_through,
            pipeline_latency: Time(self.pipeline_latency_ps),
        })
    }
}

/// DCQCN's parameters, from a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct DcqcnSpec {
    g: f64,
    alpha_timer_ps: u64,
    min_cut_interval_ps: u64,
    increase_timer_ps: u64,
    byte_counter_bytes: u64,
    fast_recovery_steps: u32,
    rate_ai_bps: u64,
    rate_hai_bps: u64,
    min_rate_bps: u64,
}

impl DcqcnSpec {
    fn params(self) -> DcqcnParams {
        DcqcnParams {
            g: self.g,
            alpha_timer: Time(self.alpha_timer_ps.max(LEAST_TIMER_PS)),
            min_cut_interval: Time(self.min_cut_interval_ps),
            increase_timer: Time(self.increase_timer_ps.max(LEAST_TIMER_PS)),
            byte_counter: self.byte_counter_bytes,
            fast_recovery_steps: self.fast_recovery_steps,
            rate_ai: Rate(self.rate_ai_bps),
            rate_hai: Rate(self.rate_hai_bps),
            min_rate: Rate(self.min_rate_bps),
        }
    }
}

/// A queue pair's settings, from a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct QpSpec {
    qpn: u32,
    peer_qpn: u32,
    template: Vec<u8>,
    mtu_bytes: u32,
    start_psn: u32,
    peer_start_psn: u32,
    priority: u8,
    timeout_exponent: u8,
    retry_count: u8,
    ack_every_packets: u32,
    dcqcn: Option<DcqcnSpec>,
    cnp_interval_ps: u64,
    cnp_dscp: u8,
    cnp_priority: u8,
    remote_address: u64,
    rkey: u32,
}

impl QpSpec {
    fn config(self) -> PyResult<QpConfig> {
        if self.mtu_bytes == 0 || self.mtu_bytes > 4096 {
            return Err(PyValueError::new_err("mtu_bytes is 1 to 4096"));
        }
        Ok(QpConfig {
            qpn: self.qpn,
            peer_qpn: self.peer_qpn,
            template: self.template,
            mtu_bytes: self.mtu_bytes,
            start_psn: self.start_psn,
            peer_start_psn: self.peer_start_psn,
            priority: self.priority & 7,
            timeout_exponent: self.timeout_exponent,
            retry_count: self.retry_count,
            ack_every_packets: self.ack_every_packets,
            dcqcn: self.dcqcn.map(DcqcnSpec::params),
            cnp_interval: Time(self.cnp_interval_ps),
            cnp_dscp: self.cnp_dscp & 63,
            cnp_priority: self.cnp_priority & 7,
            remote_address: self.remote_address,
            rkey: self.rkey,
        })
    }
}

type MatchSpec = Vec<(String, u128, Option<u128>)>;
type ActionSpec = Vec<(String, u32)>;

fn build_match(fields: &MatchSpec) -> PyResult<Match> {
    let mut matching = Match::default();
    for (name, value, mask) in fields {
        let field =
            Field::from_oxm(name).ok_or_else(|| OpenFlowError::new_err("OFPBMC_BAD_FIELD"))?;
        matching.require(field, *value, *mask);
    }
    Ok(matching)
}

/// Actions by name: `("output", port number from 1)`, `("controller", 0)`, `("in_port", 0)`, `("group", id)`, `("dec_ttl", 0)`.
fn build_actions(actions: &ActionSpec) -> PyResult<Vec<Action>> {
    actions
        .iter()
        .map(|(name, value)| match name.as_str() {
            "output" => u16::try_from(*value)
                .ok()
                .and_then(|p| p.checked_sub(1))
                .map(|p| Action::Output(Output::Port(p)))
                .ok_or_else(|| refuse(TableError::BadOutPort)),
            "controller" => Ok(Action::Output(Output::Controller)),
            "in_port" => Ok(Action::Output(Output::InPort)),
            "group" => Ok(Action::Group(*value)),
            "dec_ttl" => Ok(Action::DecTtl),
            _ => Err(OpenFlowError::new_err("OFPBAC_BAD_TYPE")),
        })
        .collect()
}

fn name_actions(actions: &[Action]) -> Vec<(&'static str, u32)> {
    actions
        .iter()
        .map(|action| match *action {
            Action::Output(Output::Port(p)) => ("output", u32::from(p) + 1),
            Action::Output(Output::Controller) => ("controller", 0),
            Action::Output(Output::InPort) => ("in_port", 0),
            Action::Group(id) => ("group", id),
            Action::DecTtl => ("dec_ttl", 0),
        })
        .collect()
}

/// Puts columns of rows into a dict, each by name and what it takes from a row.
macro_rules! set_columns {
    ($dict:ident, $py:ident, $rows:ident, { $($name:literal => |$row:ident| $value:expr,)* }) => { $(
        $dict.set_item($name, column($py, $rows.iter().map(|$row| ($value).to_le_bytes())))?;
    )* };
}

#[derive(Debug)]
enum AnyMedium {
    Memory(MemoryMedium),
    Veth(Box<VethMedium>),
}

/// A fabric of switches and NICs; `live` puts it on packet sockets, otherwise it runs in memory.
#[pyclass(name = "Fabric", module = "testbed._dataplane")]
struct PyFabric {
    fabric: Fabric,
    medium: AnyMedium,
}

impl PyFabric {
    fn switch(&mut self, node: u32) -> PyResult<&mut Switch> {
        match self.fabric.node_mut(node) {
            Some(Node::Switch(switch)) => Ok(switch),
            _ => Err(PyValueError::new_err(format!("node {node} is no switch"))),
        }
    }

    fn check_port(&self, node: u32, port: u16) -> PyResult<()> {
        if self.fabric.has_port(node, port) {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "node {node} has no port {port}"
        )))
    }

    fn check_qp(&self, (node, qp): (u32, u32)) -> PyResult<()> {
        if self.fabric.has_qp(node, qp) {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "node {node} has no queue pair {qp}"
        )))
    }

    fn veth(&mut self) -> PyResult<&mut VethMedium> {
        match &mut self.medium {
            AnyMedium::Veth(medium) => Ok(medium),
            AnyMedium::Memory(_) => Err(PyValueError::new_err("this fabric runs in memory")),
        }
    }
}

/// The output that OpenFlow means by a port number; a number that is none stands for a port that no switch has.
fn wanted_output(number: u32) -> Output {
    match number {
        OFPP_CONTROLLER => Output::Controller,
        OFPP_IN_PORT => Output::InPort,
        _ => Output::Port(u16::try_from(number).map_or(u16::MAX, |p| p.wrapping_sub(1))),
    }
}

fn filter(
    matching: &MatchSpec,
    strict_priority: Option<u16>,
    out_port: Option<u32>,
    out_group: Option<u32>,
    cookie: u64,
    cookie_mask: u64,
) -> PyResult<FlowFilter> {
    Ok(FlowFilter {
        matching: build_match(matching)?,
        strict_priority,
        output: out_port.map(wanted_output),
        out_group,
        cookie,
        cookie_mask,
    })
}

#[pymethods]
impl PyFabric {
    #[new]
    #[pyo3(signature = (live=false))]
    fn new(live: bool) -> PyResult<Self> {
        let medium = if live {
            AnyMedium::Veth(Box::new(VethMedium::new().map_err(PyOSError::new_err)?))
        } else {
            AnyMedium::Memory(MemoryMedium::default())
        };
        Ok(PyFabric {
            fabric: Fabric::new(),
            medium,
        })
    }

    // ---- Building

    fn add_switch(&mut self, spec: SwitchSpec) -> PyResult<u32> {
        let switch = Switch::new(spec.config()?);
        Ok(self.fabric.add_node(Node::Switch(switch)))
    }

    /// A NIC with one port to come; `lldp` is the frame with which it answers a controller's probe.
    #[pyo3(signature = (mac, lldp=None))]
    fn add_nic(&mut self, mac: [u8; 6], lldp: Option<Vec<u8>>) -> u32 {
        self.fabric
            .add_node(Node::Nic(Nic::new(mac, Rate(1), lldp)))
    }

    /// Adds a port and returns its index, from 0. `ecn` maps priorities to (Kmin bytes, Kmax bytes, Pmax, at dequeue, weight
    /// of the average, drop what is not ECN-capable), `queues` to (weight or
    /// `None` for strict, (rate in bits per second, burst bytes) of the shaper or `None`).
    #[pyo3(signature = (node, rate_bps, headroom_bytes=0, ecn=HashMap::new(), queues=HashMap::new()))]
    #[allow(clippy::type_complexity)]
    fn add_port(
        &mut self,
        node: u32,
        rate_bps: u64,
        headroom_bytes: u64,
        ecn: HashMap<u8, (u64, u64, f64, bool, f64, bool)>,
        queues: HashMap<u8, (Option<u32>, Option<(u64, u64)>)>,
    ) -> PyResult<u16> {
        if rate_bps == 0 {
            return Err(PyValueError::new_err("a rate is above zero"));
        }
        let mut config = PortConfig {
            headroom_bytes,
            ..PortConfig::default()
        };
        for (priority, (kmin_bytes, kmax_bytes, pmax, at_dequeue, weight, drop_not_ect)) in ecn {
            config.ecn[usize::from(priority & 7)] = Some(EcnProfile {
                kmin_bytes,
                kmax_bytes,
                pmax,
                at_dequeue,
                weight,
                drop_not_ect,
            });
        }
        for (priority, (weight, shaper)) in queues {
            config.queues[usize::from(priority & 7)] = QueueConfig {
                service: weight.map_or(Service::Strict, Service::Weighted),
                shaper: shaper.map(|(rate_bps, burst_bytes)| Shaper {
                    rate: Rate(rate_bps.max(1)),
                    burst_bytes,
                }),
            };
        }
        self.fabric
            .add_port(node, Rate(rate_bps), &config)
            .map(|(port, _)| port)
            .ok_or_else(|| PyValueError::new_err(format!("node {node} takes no more ports")))
    }

    /// How a port takes pause frames: after `delay_ps`, or not at all.
    fn set_pause_response(
        &mut self,
        node: u32,
        port: u16,
        delay_ps: u64,
        ignores: bool,
    ) -> PyResult<()> {
        self.check_port(node, port)?;
        let delay = Time(delay_ps);
        self.fabric
            .set_pause_response((node, port), PauseResponse { delay, ignores });
        Ok(())
    }

    fn connect(&mut self, a: (u32, u16), b: (u32, u16), delay_ps: u64) -> PyResult<()> {
        self.check_port(a.0, a.1)?;
        self.check_port(b.0, b.1)?;
        self.fabric.connect(a, b, Time(delay_ps));
        Ok(())
    }

    fn add_qp(&mut self, node: u32, spec: QpSpec) -> PyResult<u32> {
        self.fabric
            .add_qp(node, spec.config()?)
            .map_err(|e| PyValueError::new_err(e.to_string()))?
            .ok_or_else(|| PyValueError::new_err(format!("node {node} is no NIC")))
    }

    fn pair_qps(&mut self, a: (u32, u32), b: (u32, u32)) -> PyResult<()> {
        self.check_qp(a)?;
        self.check_qp(b)?;
        self.fabric.pair_qps(a, b);
        Ok(())
    }

    fn add_message(&mut self, node: u32, qp: u32, size_bytes: u64, start_ps: u64) -> PyResult<u32> {
        self.check_qp((node, qp))?;
        if size_bytes > LONGEST_MESSAGE_BYTES {
            return Err(PyValueError::new_err("a message has at most 2^31 bytes"));
        }
        Ok(self
            .fabric
            .add_message(node, qp, size_bytes, Time(start_ps)))
    }

    fn schedule_link(&mut self, at_ps: u64, node: u32, port: u16, up: bool) -> PyResult<()> {
        self.check_port(node, port)?;
        self.fabric
            .schedule(Time(at_ps), Control::LinkState { node, port, up });
        Ok(())
    }

    /// A NIC storms: PFC frames for `priority`, or 802.3x pause frames if `global_pause`, every `interval_ps` or (0) in time.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (at_ps, until_ps, node, priority, quanta, interval_ps=0, global_pause=false))]
    fn schedule_storm(
        &mut self,
        at_ps: u64,
        until_ps: u64,
        node: u32,
        priority: u8,
        quanta: u16,
        interval_ps: u64,
        global_pause: bool,
    ) -> PyResult<()> {
        self.check_port(node, 0)?;
        let control = Control::StartStorm {
            node,
            priority: priority & 7,
            spec: StormSpec {
                quanta: quanta.max(1),
                interval: (interval_ps > 0).then_some(Time(interval_ps)),
                global: global_pause,
            },
            until: Time(until_ps),
        };
        self.fabric.schedule(Time(at_ps), control);
        Ok(())
    }

    /// From `at_ps` on something is wrong with the link at a port: `kind` is `loss_every`, `loss_rate`, `bit_error_rate`,
    /// `added_delay_ps` or `rate_bps`; 0 mends it.
    fn schedule_impairment(
        &mut self,
        at_ps: u64,
        node: u32,
        port: u16,
        kind: &str,
        value: f64,
        seed: u64,
    ) -> PyResult<()> {
        self.check_port(node, port)?;
        let whole = value.max(0.0) as u64;
        let impairment = match kind {
            "loss_every" => Impairment::LossEvery(whole),
            "loss_rate" => Impairment::LossRate(value.clamp(0.0, 1.0)),
            "bit_error_rate" => Impairment::BitErrorRate(value.clamp(0.0, 0.5)),
            "added_delay_ps" => Impairment::AddedDelay(Time(whole)),
            "rate_bps" => Impairment::Rate((whole > 0).then_some(Rate(whole))),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "no impairment is called {kind}"
                )))
            }
        };
        let control = Control::Impair {
            node,
            port,
            impairment,
            seed,
        };
        self.fabric.schedule(Time(at_ps), control);
        Ok(())
    }

    /// (lost, corrupted) frames of links that a fault made so.
    fn link_counters(&self) -> (u64, u64) {
        (
            self.fabric.links_lost_frames,
            self.fabric.links_corrupted_frames,
        )
    }

    /// Lets `run` return with `("break", token)` at a fabric time.
    fn schedule_break(&mut self, at_ps: u64, token: u32) {
        self.fabric.schedule(Time(at_ps), Control::Break { token });
    }

    /// Begins the run; false while frames of the set-up are still under way.
    #[pyo3(signature = (sample_interval_ps=None))]
    fn start(&mut self, sample_interval_ps: Option<u64>) -> bool {
        self.fabric
            .start(sample_interval_ps.map(|t| Time(t.max(1))))
    }

    fn capture(
        &mut self,
        node: u32,
        port: u16,
        path: PathBuf,
        names: (String, String),
    ) -> PyResult<()> {
        self.fabric
            .capture((node, port), &path, [&names.0, &names.1])
            .map_err(PyOSError::new_err)
    }

    fn close_captures(&mut self) -> PyResult<()> {
        self.fabric.close_captures().map_err(PyOSError::new_err)
    }

    // ---- Live

    /// Opens a packet socket for a port on `interface`, in the network namespace of the file `namespace`.
    #[pyo3(signature = (node, port, interface, namespace=None))]
    fn attach(
        &mut self,
        node: u32,
        port: u16,
        interface: &str,
        namespace: Option<PathBuf>,
    ) -> PyResult<()> {
        self.check_port(node, port)?;
        let id = self.fabric.port_id(node, port);
        let socket = PacketSocket::open(namespace.as_deref(), interface)
            .map_err(|e| PyOSError::new_err(format!("packet socket on {interface}: {e}")))?;
        let is_host = matches!(self.fabric.node(node), Some(Node::Nic(_)));
        let medium = self.veth()?;
        medium
            .attach(id, socket, is_host)
            .map_err(PyOSError::new_err)
    }

    /// Keeps the link to a port inside the process.
    fn keep_in_memory(&mut self, node: u32, port: u16) -> PyResult<()> {
        self.check_port(node, port)?;
        let id = self.fabric.port_id(node, port);
        self.veth()?.keep_in_memory(id);
        Ok(())
    }

    fn detach(&mut self, node: u32, port: u16) -> PyResult<()> {
        self.check_port(node, port)?;
        let id = self.fabric.port_id(node, port);
        self.veth()?.detach(id);
        Ok(())
    }

    /// Wall seconds per fabric second at least, or `None` to run as fast as the machine can.
    #[pyo3(signature = (slowdown))]
    fn set_slowdown(&mut self, slowdown: Option<f64>) -> PyResult<()> {
        let now = self.fabric.clock();
        self.veth()?.set_slowdown(now, slowdown);
        Ok(())
    }

    fn fidelity<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let taken = (self.fabric.foreign_frames, self.fabric.foreign_overflow);
        let (mut lost, mut slipped, mut late, mut not_taken) = (0, Duration::ZERO, vec![], 0);
        if let AnyMedium::Veth(medium) = &mut self.medium {
            medium.count_overruns();
            let f = &medium.fidelity;
            (lost, slipped) = (f.lost_frames, f.slipped);
            not_taken = f.foreign_not_taken;
            late.clone_from(&f.foreign_late);
            dict.set_item("overruns", f.overruns)?;
        } else {
            dict.set_item("overruns", 0)?;
        }
        late.sort_unstable();
        let p99 = late.get((late.len() * 99 / 100).min(late.len().saturating_sub(1)));
        dict.set_item("lost_frames", lost)?;
        dict.set_item("slipped_s", slipped.as_secs_f64())?;
        dict.set_item("foreign_frames", taken.0)?;
        dict.set_item("foreign_not_taken", taken.1 + not_taken)?;
        dict.set_item(
            "foreign_late_p99_ns",
            p99.map_or(0, |d| d.as_nanos() as u64),
        )?;
        Ok(dict)
    }

    // ---- Running

    /// Runs until something stops it: returns (`"done"`, `"until"`, `"break"`, `"port"` or `"budget"`, token).
    #[pyo3(signature = (until_ps=None, budget_events=1_000_000, budget_ms=50))]
    fn run(
        &mut self,
        py: Python<'_>,
        until_ps: Option<u64>,
        budget_events: u64,
        budget_ms: u64,
    ) -> (&'static str, u32) {
        let until = until_ps.map_or(Time::MAX, Time);
        let (fabric, medium) = (&mut self.fabric, &mut self.medium);
        let stop = py.detach(|| match medium {
            AnyMedium::Memory(m) => fabric.run(m, until, budget_events),
            AnyMedium::Veth(m) => {
                let budget = Duration::from_millis(budget_ms.min(LONGEST_BUDGET_MS));
                m.set_deadline(Instant::now() + budget);
                fabric.run(m.as_mut(), until, budget_events)
            }
        });
        match stop {
            Stop::Done => ("done", 0),
            Stop::Until => ("until", 0),
            Stop::Break(token) => ("break", token),
            Stop::PortChange => ("port", 0),
            Stop::Budget => ("budget", 0),
        }
    }

    /// Takes the last samples; call once, when the run is over.
    fn finish(&mut self) {
        self.fabric.finish();
    }

    #[getter]
    fn now_ps(&self) -> u64 {
        self.fabric.now().0
    }

    #[getter]
    fn steps(&self) -> u64 {
        self.fabric.steps()
    }

    #[getter]
    fn open_messages(&self) -> usize {
        self.fabric.open_messages()
    }

    // ---- OpenFlow

    #[allow(clippy::too_many_arguments)]
    fn flow_add(
        &mut self,
        node: u32,
        table: u8,
        priority: u16,
        cookie: u64,
        id: u64,
        matching: MatchSpec,
        actions: ActionSpec,
        goto_table: Option<u8>,
    ) -> PyResult<Option<u64>> {
        let flow = Flow {
            priority,
            matching: build_match(&matching)?,
            cookie,
            actions: build_actions(&actions)?.into(),
            goto_table,
            id,
            packets: 0.into(),
            bytes: 0.into(),
        };
        self.switch(node)?
            .tables
            .add_flow(table, flow)
            .map_err(refuse)
    }

    #[allow(clippy::too_many_arguments)]
    fn flow_modify(
        &mut self,
        node: u32,
        table: u8,
        matching: MatchSpec,
        strict_priority: Option<u16>,
        cookie: u64,
        cookie_mask: u64,
        actions: ActionSpec,
        goto_table: Option<u8>,
    ) -> PyResult<Vec<u64>> {
        let which = filter(&matching, strict_priority, None, None, cookie, cookie_mask)?;
        let actions = build_actions(&actions)?;
        self.switch(node)?
            .tables
            .modify_flows(table, &which, &actions, goto_table)
            .map_err(refuse)
    }

    #[allow(clippy::too_many_arguments)]
    fn flow_delete(
        &mut self,
        node: u32,
        table: Option<u8>,
        matching: MatchSpec,
        strict_priority: Option<u16>,
        out_port: Option<u32>,
        out_group: Option<u32>,
        cookie: u64,
        cookie_mask: u64,
    ) -> PyResult<Vec<u64>> {
        let which = filter(
            &matching,
            strict_priority,
            out_port,
            out_group,
            cookie,
            cookie_mask,
        )?;
        self.switch(node)?
            .tables
            .delete_flows(table, &which)
            .map_err(refuse)
    }

    /// (table, id, priority, cookie, packets, bytes, actions, goto_table) of the flows asked for.
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn flow_stats(
        &mut self,
        node: u32,
        table: Option<u8>,
        matching: MatchSpec,
        out_port: Option<u32>,
        out_group: Option<u32>,
        cookie: u64,
        cookie_mask: u64,
    ) -> PyResult<
        Vec<(
            u8,
            u64,
            u16,
            u64,
            u64,
            u64,
            Vec<(&'static str, u32)>,
            Option<u8>,
        )>,
    > {
        let which = filter(&matching, None, out_port, out_group, cookie, cookie_mask)?;
        let tables = &self.switch(node)?.tables;
        Ok(tables
            .flows(table, &which)
            .into_iter()
            .map(|(t, f)| {
                let actions = name_actions(&f.actions);
                let packets = f.packets.load(std::sync::atomic::Ordering::Relaxed);
                let bytes = f.bytes.load(std::sync::atomic::Ordering::Relaxed);
                (
                    t,
                    f.id,
                    f.priority,
                    f.cookie,
                    packets,
                    bytes,
                    actions,
                    f.goto_table,
                )
            })
            .collect())
    }

    #[pyo3(signature = (node, group, kind, buckets, modify=false))]
    fn group_set(
        &mut self,
        node: u32,
        group: u32,
        kind: &str,
        buckets: Vec<(u16, ActionSpec)>,
        modify: bool,
    ) -> PyResult<()> {
        let kind = match kind {
            "all" => GroupKind::All,
            "indirect" => GroupKind::Indirect,
            "select" => GroupKind::Select,
            _ => return Err(OpenFlowError::new_err("OFPGMFC_BAD_TYPE")),
        };
        let buckets = buckets
            .into_iter()
            .map(|(weight, actions)| {
                Ok(Bucket {
                    weight,
                    actions: build_actions(&actions)?.into(),
                })
            })
            .collect::<PyResult<_>>()?;
        self.switch(node)?
            .tables
            .set_group(group, kind, buckets, modify)
            .map_err(refuse)
    }

    /// Removes a group, or all for `None`, and returns the ids of the flows that went with it.
    #[pyo3(signature = (node, group=None))]
    fn group_delete(&mut self, node: u32, group: Option<u32>) -> PyResult<Vec<u64>> {
        Ok(self.switch(node)?.tables.delete_group(group))
    }

    /// (id, kind, packets, bytes, [(weight, actions)]) of every group.
    #[allow(clippy::type_complexity)]
    fn group_stats(
        &mut self,
        node: u32,
    ) -> PyResult<
        Vec<(
            u32,
            &'static str,
            u64,
            u64,
            Vec<(u16, Vec<(&'static str, u32)>)>,
        )>,
    > {
        let groups = self.switch(node)?.tables.groups();
        Ok(groups
            .iter()
            .map(|(&id, g)| {
                let kind = match g.kind {
                    GroupKind::All => "all",
                    GroupKind::Indirect => "indirect",
                    GroupKind::Select => "select",
                };
                let buckets = g
                    .buckets
                    .iter()
                    .map(|b| (b.weight, name_actions(&b.actions)))
                    .collect();
                (id, kind, g.packets, g.bytes, buckets)
            })
            .collect())
    }

    /// Number of entries of each flow table.
    fn table_counts(&mut self, node: u32) -> PyResult<Vec<usize>> {
        Ok(self.switch(node)?.tables.flow_counts())
    }

    fn packet_out(
        &mut self,
        node: u32,
        in_port: Option<u16>,
        actions: ActionSpec,
        frame: Vec<u8>,
    ) -> PyResult<()> {
        let actions = build_actions(&actions)?;
        self.switch(node)?
            .tables
            .check_actions(&actions)
            .map_err(refuse)?;
        if let Some(port) = in_port {
            self.check_port(node, port)?;
        }
        let frame = Frame::new(frame);
        match &mut self.medium {
            AnyMedium::Memory(m) => self.fabric.packet_out(m, node, in_port, &actions, frame),
            AnyMedium::Veth(m) => {
                self.fabric
                    .packet_out(m.as_mut(), node, in_port, &actions, frame)
            }
        }
        Ok(())
    }

    /// (node, port from 0, table, cookie, reason, frame) for the controller, since the last call.
    #[allow(clippy::type_complexity)]
    fn take_packet_ins<'py>(
        &mut self,
        py: Python<'py>,
    ) -> Vec<(u32, u16, u8, u64, u8, Bound<'py, PyBytes>)> {
        self.fabric
            .take_packet_ins()
            .into_iter()
            .map(|p| {
                let bytes = PyBytes::new(py, p.frame.bytes());
                (p.node, p.port, p.table, p.cookie, p.reason, bytes)
            })
            .collect()
    }

    /// (node, port from 0, up) of switch ports that changed since the last call.
    fn take_port_changes(&mut self) -> Vec<(u32, u16, bool)> {
        self.fabric
            .take_port_changes()
            .into_iter()
            .map(|c| (c.node, c.port, c.up))
            .collect()
    }

    fn note_reroute(&mut self, node: u32, changes: u64) {
        self.fabric.note(node, EventKind::Reroute, changes);
    }

    // ---- Results

    /// Counters of a port by priority, summed where OpenFlow wants them summed.
    fn port_counters<'py>(
        &mut self,
        py: Python<'py>,
        node: u32,
        port: u16,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.check_port(node, port)?;
        self.fabric.settle();
        let dict = PyDict::new(py);
        let Some(n) = self.fabric.node(node) else {
            return Ok(dict);
        };
        let tx = n.tx(port);
        dict.set_item("up", tx.is_up())?;
        let c = &tx.counters;
        let column =
            |f: fn(&crate::tx::PriorityCounters) -> u64| c.iter().map(f).collect::<Vec<_>>();
        dict.set_item("tx_frames", column(|c| c.tx_frames))?;
        dict.set_item("tx_bytes", column(|c| c.tx_bytes))?;
        dict.set_item("rx_frames", column(|c| c.rx_frames))?;
        dict.set_item("rx_bytes", column(|c| c.rx_bytes))?;
        dict.set_item("ecn_marked", column(|c| c.ecn_marked))?;
        dict.set_item("paused_ps", column(|c| c.paused_ps))?;
        dict.set_item("rx_pause", column(|c| c.rx_pause))?;
        dict.set_item("tx_pause", column(|c| c.tx_pause))?;
        if let Node::Switch(s) = n {
            let queued: Vec<u64> = (0..PRIORITIES).map(|p| s.queue_bytes(port, p)).collect();
            dict.set_item("queue_bytes", queued)?;
            let held = |p| s.mmu().max_ingress_bytes(usize::from(port), p);
            dict.set_item(
                "ingress_max_bytes",
                (0..PRIORITIES).map(held).collect::<Vec<_>>(),
            )?;
            let histograms = (0..PRIORITIES).map(|p| s.histograms(port, p));
            let plain = histograms.map(|(depths, waits)| {
                let depths = (depths.max(), depths.counts().to_vec());
                (depths, (waits.max(), waits.counts().to_vec()))
            });
            dict.set_item("histograms", plain.collect::<Vec<_>>())?;
        }
        Ok(dict)
    }

    /// Totals of a switch or a NIC.
    fn node_counters<'py>(&self, py: Python<'py>, node: u32) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        match self.fabric.node(node) {
            Some(Node::Switch(s)) => {
                let c = &s.counters;
                dict.set_item("rx_frames", c.rx_frames)?;
                dict.set_item("tx_frames", c.tx_frames)?;
                dict.set_item("ecn_marked", c.ecn_marked)?;
                dict.set_item("pfc_xoff_sent", c.pfc_xoff_sent)?;
                dict.set_item("pfc_xon_sent", c.pfc_xon_sent)?;
                dict.set_item("watchdog_trips", c.watchdog_trips)?;
                dict.set_item("buffer_max_bytes", s.mmu().max_used_bytes())?;
                dict.set_item("buffer_bytes", s.mmu().used_bytes())?;
                let drops = PyDict::new(py);
                for (reason, name) in DropReason::ALL {
                    drops.set_item(name, c.drop_frames[reason as usize])?;
                }
                dict.set_item("drops", drops)?;
            }
            Some(Node::Nic(n)) => {
                let c = &n.counters;
                dict.set_item("tx_packets", c.tx_packets)?;
                dict.set_item("rx_packets", c.rx_packets)?;
                dict.set_item("tx_bytes", c.tx_bytes)?;
                dict.set_item("rx_bytes", c.rx_bytes)?;
                dict.set_item("cnp_sent", c.cnp_sent)?;
                dict.set_item("cnp_received", c.cnp_received)?;
                dict.set_item("naks", c.naks)?;
                dict.set_item("timeouts", c.timeouts)?;
                dict.set_item("retransmitted_packets", c.retransmitted_packets)?;
                dict.set_item("out_of_order_packets", c.out_of_order_packets)?;
                dict.set_item("icrc_errors", c.icrc_errors)?;
                dict.set_item("malformed", c.malformed)?;
                dict.set_item("unknown_qp", c.unknown_qp)?;
            }
            None => return Err(PyValueError::new_err(format!("there is no node {node}"))),
        }
        Ok(dict)
    }

    fn conservation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let c = self.fabric.conservation();
        let dict = PyDict::new(py);
        dict.set_item("injected_bytes", c.injected)?;
        dict.set_item("delivered_bytes", c.delivered)?;
        dict.set_item("dropped_bytes", c.dropped)?;
        dict.set_item("in_flight_bytes", c.in_flight)?;
        dict.set_item(
            "balanced",
            c.injected == c.delivered + c.dropped + c.in_flight,
        )?;
        Ok(dict)
    }

    /// (node, qp, bytes, start_ps, end_ps, outcome, retransmitted packets, ECN-marked packets) of each message, in order.
    #[allow(clippy::type_complexity)]
    fn messages(
        &self,
    ) -> Vec<(
        u32,
        u32,
        u64,
        u64,
        Option<u64>,
        Option<&'static str>,
        u32,
        u32,
    )> {
        self.fabric
            .messages()
            .iter()
            .map(|m| {
                let (end, outcome) = (m.end.map(|t| t.0), m.outcome.map(|o| o.name()));
                let (again, marked) = (m.retransmitted_packets, m.ecn_marked_packets);
                (
                    m.node, m.qp, m.bytes, m.start.0, end, outcome, again, marked,
                )
            })
            .collect()
    }

    /// Columns of the event rows: `time_ps` u64, `node` u32, `kind` u8 (index in `kinds`), `port` i32, `priority` i32,
    /// `flow` i64 (-1 for none), `detail` u64.
    fn event_columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rows = &self.fabric.events;
        let mut kinds: Vec<String> = Vec::new();
        let mut kind_column = Vec::with_capacity(rows.len());
        for row in rows {
            let name = match row.record.kind {
                EventKind::Drop(reason) => format!("drop:{}", reason.name()),
                kind => kind.name().to_owned(),
            };
            let index = kinds.iter().position(|k| *k == name).unwrap_or_else(|| {
                kinds.push(name);
                kinds.len() - 1
            });
            kind_column.push(index as u8);
        }
        let opt = |value: Option<i64>| value.unwrap_or(-1);
        let dict = PyDict::new(py);
        set_columns!(dict, py, rows, {
            "time_ps" => |r| r.at.0,
            "node" => |r| r.node,
            "port" => |r| opt(r.record.port.map(i64::from)),
            "priority" => |r| opt(r.record.priority.map(i64::from)),
            "flow" => |r| opt(r.record.flow.map(i64::from)),
            "detail" => |r| r.record.detail,
        });
        dict.set_item("kind", PyBytes::new(py, &kind_column))?;
        dict.set_item("kinds", kinds)?;
        dict.set_item("not_kept", self.fabric.events_not_kept)?;
        Ok(dict)
    }

    /// Columns of the port rows; all u64 but `node` u32, `port` u16, `priority` u8.
    fn port_columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rows = &self.fabric.port_rows;
        let dict = PyDict::new(py);
        set_columns!(dict, py, rows, {
            "time_ps" => |r| r.at.0,
            "interval_ps" => |r| r.interval.0,
            "node" => |r| r.node,
            "port" => |r| r.port,
            "priority" => |r| r.priority,
            "queue_bytes" => |r| r.queue_bytes,
            "ingress_bytes" => |r| r.ingress_bytes,
            "tx_bytes" => |r| r.tx_bytes,
            "rx_bytes" => |r| r.rx_bytes,
            "ecn_marked" => |r| r.ecn_marked,
            "paused_ps" => |r| r.paused_ps,
        });
        Ok(dict)
    }

    /// Columns of the rate rows: `time_ps` u64, `node` u32, `qpn` u32, `rate_bps` u64, `alpha` f64.
    fn rate_columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rows = &self.fabric.rate_rows;
        let dict = PyDict::new(py);
        set_columns!(dict, py, rows, {
            "time_ps" => |r| r.at.0,
            "node" => |r| r.node,
            "qpn" => |r| r.qpn,
            "rate_bps" => |r| r.rate.0,
            "alpha" => |r| r.alpha,
        });
        Ok(dict)
    }
}

fn column<'py, const N: usize>(
    py: Python<'py>,
    values: impl Iterator<Item = [u8; N]>,
) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &values.flatten().collect::<Vec<u8>>())
}

/// The buffer of a switch by itself, to be held against a description of it.
#[pyclass(name = "Mmu", module = "testbed._dataplane")]
struct PyMmu(Mmu);

#[pymethods]
impl PyMmu {
    /// Settings as in a switch's dict; `ports` is the headroom of each port in bytes.
    #[new]
    fn new(spec: SwitchSpec, ports: Vec<u64>) -> PyResult<Self> {
        let mut mmu = Mmu::new(spec.config()?.mmu);
        for headroom_bytes in ports {
            mmu.add_port(headroom_bytes);
        }
        Ok(PyMmu(mmu))
    }

    /// `admitted`, `buffer` or `headroom`.
    fn admit(
        &mut self,
        port: usize,
        priority: usize,
        frame_bytes: usize,
        queue_bytes: u64,
    ) -> &'static str {
        match self.0.admit(port, priority, frame_bytes, queue_bytes) {
            Admission::Admitted => "admitted",
            Admission::BufferFull => "buffer",
            Admission::HeadroomFull => "headroom",
        }
    }

    fn release(&mut self, port: usize, priority: usize, frame_bytes: usize) {
        self.0.release(port, priority, frame_bytes);
    }

    fn turns_xoff(&mut self, port: usize, priority: usize) -> bool {
        self.0.turns_xoff(port, priority)
    }

    fn turns_xon(&mut self, port: usize, priority: usize) -> bool {
        self.0.turns_xon(port, priority)
    }

    #[getter]
    fn used_bytes(&self) -> u64 {
        self.0.used_bytes()
    }
}

/// The ICRC that a RoCEv2 frame should carry and the one it does, or `None`.
#[pyfunction]
fn check_icrc(frame: &[u8]) -> Option<(u32, u32)> {
    icrc_of_frame(frame, &Headers::parse(frame).ok()?)
}

/// Takes a frame apart and puts it together again from its fields.
#[pyfunction]
fn rebuild<'py>(py: Python<'py>, frame: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let packet = Packet::parse(frame).map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok(PyBytes::new(py, &packet.emit()))
}

#[pymodule]
fn _dataplane(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyFabric>()?;
    m.add_class::<PyMmu>()?;
    m.add("OpenFlowError", m.py().get_type::<OpenFlowError>())?;
    m.add("TABLES", TABLES)?;
    m.add_function(wrap_pyfunction!(check_icrc, m)?)?;
    m.add_function(wrap_pyfunction!(rebuild, m)?)?;
    Ok(())
}
