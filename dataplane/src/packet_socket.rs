//! Packet sockets on network interfaces, opened inside any network namespace. The one place with `unsafe`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Frames moved by one system call.
pub const BATCH: usize = 64;
/// Largest frame that is received: jumbo frames and a tag fit well.
const MAX_FRAME_BYTES: usize = 16 * 1024;
/// What a socket may hold before the kernel drops frames. Frames wait here for the fabric clock.
const RECEIVE_BUFFER_BYTES: libc::c_int = 64 << 20;
/// Space for the control messages of one frame: time stamp and auxiliary data.
const CONTROL_WORDS: usize = 16;

// Of linux/if_packet.h, where the libc crate lacks them.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// A packet socket bound to one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

impl PacketSocket {
    /// Opens a socket on `interface` in the network namespace that the file `namespace` stands for
    /// (`/proc/PID/ns/net`, or a file of `/run/netns`), or in this process's own.
    ///
    /// # Errors
    /// I/O errors: no such interface or namespace, no privilege.
    pub fn open(namespace: Option<&Path>, interface: &str) -> io::Result<PacketSocket> {
        let Some(namespace) = namespace else {
            return Self::open_here(interface);
        };
        let namespace: PathBuf = namespace.to_owned();
        let interface = interface.to_owned();
        // A namespace belongs to a thread: one of its own leaves the others where they are.
        std::thread::spawn(move || {
            let file = File::open(&namespace)?;
            // SAFETY: setns takes a descriptor that `file` keeps open for the call; no memory is passed.
            check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) })?;
            Self::open_here(&interface)
        })
        .join()
        .map_err(|_| io::Error::other("the thread that opens the socket died"))?
    }

    fn open_here(interface: &str) -> io::Result<PacketSocket> {
        let name = CString::new(interface)?;
        // SAFETY: `name` is a NUL-terminated string that lives through the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // Protocol 0 receives nothing until bind: frames of other interfaces never get in.
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no memory; the descriptor it returns is new and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?) };
        let socket = PacketSocket { fd };
        for (level, option, value) in [
            (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1),
            (libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1),
            (libc::SOL_PACKET, libc::PACKET_AUXDATA, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1),
        ] {
            socket.set_option(level, option, value)?;
        }
        // SAFETY: sockaddr_ll is plain data, for which all zeros is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the pointer and length describe `address`, which lives through the call.
        check(unsafe {
            libc::bind(
                socket.raw(),
                std::ptr::from_ref(&address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        })?;
        Ok(socket)
    }

    fn set_option(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        // SAFETY: the pointer and length describe `value`, which lives through the call.
        check(unsafe {
            libc::setsockopt(
                self.raw(),
                level,
                option,
                std::ptr::from_ref(&value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        })?;
        Ok(())
    }

    /// Its descriptor.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sends frames in order; returns how many the kernel took.
    ///
    /// # Errors
    /// I/O errors of the first frame; an error of a later one ends the batch before it.
    pub fn send(&self, frames: &[&[u8]]) -> io::Result<usize> {
        let count = frames.len().min(BATCH);
        // SAFETY: iovec and mmsghdr are plain data, for which all zeros is a valid value.
        let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        for i in 0..count {
            parts[i].iov_base = frames[i].as_ptr().cast_mut().cast();
            parts[i].iov_len = frames[i].len();
            headers[i].msg_hdr.msg_iov = &mut parts[i];
            headers[i].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` headers each point to one iovec, which points to a frame; all live through the
        // call, and sending only reads the frames.
        let sent =
            check(unsafe { libc::sendmmsg(self.raw(), headers.as_mut_ptr(), count as u32, 0) })?;
        Ok(sent as usize)
    }

    /// Frames that the kernel dropped because the socket was full, since the last call.
    ///
    /// # Errors
    /// I/O errors.
    pub fn take_overruns(&self) -> io::Result<u32> {
        // struct tpacket_stats: packets, drops.
        let mut stats = [0u32; 2];
        let mut length = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: pointer and length describe `stats`, which the kernel fills.
        check(unsafe {
            libc::getsockopt(
                self.raw(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                stats.as_mut_ptr().cast(),
                &mut length,
            )
        })?;
        Ok(stats[1])
    }
}

/// Reusable space for receiving.
pub struct Receiver {
    data: Vec<u8>,
    /// In words of eight bytes: control messages are aligned to that.
    control: Vec<u64>,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Receiver")
    }
}

impl Default for Receiver {
    fn default() -> Self {
        Receiver {
            data: vec![0; BATCH * MAX_FRAME_BYTES],
            control: vec![0; BATCH * CONTROL_WORDS],
        }
    }
}

impl Receiver {
    /// Takes what the socket holds, at most one batch, and gives each frame with the wall time at which the kernel
    /// had it to `take`. Returns how many there were: 0 when there is nothing to read.
    ///
    /// # Errors
    /// I/O errors but for "would block".
    pub fn receive(
        &mut self,
        socket: &PacketSocket,
        mut take: impl FnMut(Vec<u8>, Duration),
    ) -> io::Result<usize> {
        // SAFETY: iovec and mmsghdr are plain data, for which all zeros is a valid value.
        let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        let (data, control) = (self.data.as_mut_ptr(), self.control.as_mut_ptr());
        for i in 0..BATCH {
            // SAFETY: both offsets lie within the vectors, which hold BATCH times as much.
            let (frame, words) = unsafe {
                (
                    data.add(i * MAX_FRAME_BYTES),
                    control.add(i * CONTROL_WORDS),
                )
            };
            parts[i].iov_base = frame.cast();
            parts[i].iov_len = MAX_FRAME_BYTES;
            let header = &mut headers[i].msg_hdr;
            header.msg_iov = &mut parts[i];
            header.msg_iovlen = 1;
            header.msg_control = words.cast();
            header.msg_controllen = (CONTROL_WORDS * size_of::<u64>()) as _;
        }
        // SAFETY: each header points to its own slice of `data` and `control` of the length it says; they do not
        // overlap, and live through the call.
        let got = unsafe {
            libc::recvmmsg(
                socket.raw(),
                headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let got = match check(got) {
            Ok(n) => n as usize,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(0)
            }
            Err(e) => return Err(e),
        };
        for (i, header) in headers.iter().enumerate().take(got) {
            let length = (header.msg_len as usize).min(MAX_FRAME_BYTES);
            let (stamp, tag) = read_control(&header.msg_hdr);
            let bytes = &self.data[i * MAX_FRAME_BYTES..][..length];
            take(with_tag(bytes, tag), stamp);
        }
        Ok(got)
    }
}

/// The wall time and the 802.1Q tag (TPID, TCI) that the kernel took off, from a received message's control data.
fn read_control(header: &libc::msghdr) -> (Duration, Option<(u16, u16)>) {
    let mut stamp = Duration::ZERO;
    let mut tag = None;
    // SAFETY: the kernel has filled `msg_control` up to `msg_controllen`; the CMSG macros stay within it, and the data
    // of a message is read unaligned and only for the types whose size the kernel guarantees.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(m) = message.as_ref() {
            let data = libc::CMSG_DATA(message);
            match (m.cmsg_level, m.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    let time: libc::timespec = data.cast::<libc::timespec>().read_unaligned();
                    stamp = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    let aux = data.cast::<libc::tpacket_auxdata>().read_unaligned();
                    if aux.tp_status & TP_STATUS_VLAN_VALID != 0 {
                        let has_tpid = aux.tp_status & TP_STATUS_VLAN_TPID_VALID != 0;
                        let tpid = if has_tpid { aux.tp_vlan_tpid } else { 0x8100 };
                        tag = Some((tpid, aux.tp_vlan_tci));
                    }
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    (stamp, tag)
}

/// The frame with the tag put back where it was on the wire.
fn with_tag(bytes: &[u8], tag: Option<(u16, u16)>) -> Vec<u8> {
    let (Some((tpid, tci)), Some((addresses, rest))) = (tag, bytes.split_at_checked(12)) else {
        return bytes.to_vec();
    };
    let mut whole = Vec::with_capacity(bytes.len() + 4);
    whole.extend_from_slice(addresses);
    whole.extend_from_slice(&tpid.to_be_bytes());
    whole.extend_from_slice(&tci.to_be_bytes());
    whole.extend_from_slice(rest);
    whole
}

/// Waits for any of a set of sockets to have something to read.
#[derive(Debug)]
pub struct Poller {
    fd: OwnedFd,
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: epoll_create1 takes no memory; the descriptor it returns is new and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Poller { fd })
    }

    /// Adds a socket, which reports as `token`. It leaves the set when it is closed.
    ///
    /// # Errors
    /// I/O errors.
    pub fn add(&self, socket: &PacketSocket, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        // SAFETY: `event` lives through the call.
        check(unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                socket.raw(),
                &mut event,
            )
        })?;
        Ok(())
    }

    /// The tokens of sockets that can be read, after waiting at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Vec<u64> {
        // SAFETY: epoll_event is plain data, for which all zeros is a valid value.
        let mut events: [libc::epoll_event; BATCH] = unsafe { zeroed() };
        let time = libc::timespec {
            tv_sec: timeout.as_secs() as _,
            tv_nsec: timeout.subsec_nanos() as _,
        };
        // SAFETY: the pointer and count describe `events`, `time` lives through the call, and no signal mask is given.
        let n = unsafe {
            libc::epoll_pwait2(
                self.fd.as_raw_fd(),
                events.as_mut_ptr(),
                BATCH as i32,
                &time,
                std::ptr::null(),
            )
        };
        events
            .iter()
            .take(usize::try_from(n).unwrap_or(0))
            .map(|e| e.u64)
            .collect()
    }
}
