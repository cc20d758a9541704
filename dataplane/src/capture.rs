//! Captures of links: pcapng with fabric-time stamps in nanoseconds, one interface for each end of the link.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::{DataLink, PcapError};

use crate::time::Time;

/// `if_tsresol` of nanoseconds.
const NANOSECONDS: u8 = 9;

/// A capture file being written.
pub struct Capture {
    writer: PcapNgWriter<BufWriter<File>>,
    /// Captured so far.
    pub frames: u64,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("frames", &self.frames)
            .finish()
    }
}

impl Capture {
    /// Creates a file with one interface for each name.
    ///
    /// # Errors
    /// [`PcapError`] where the file cannot be written.
    pub fn create(path: &Path, interfaces: &[&str]) -> Result<Capture, PcapError> {
        let mut writer = PcapNgWriter::new(BufWriter::new(
            File::create_new(path).map_err(PcapError::IoError)?,
        ))?;
        for name in interfaces {
            writer.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
        }
        Ok(Capture { writer, frames: 0 })
    }

    /// Appends a frame seen leaving by interface `interface`.
    ///
    /// # Errors
    /// [`PcapError`] where the file cannot be written.
    pub fn write(&mut self, at: Time, interface: u32, frame: &[u8]) -> Result<(), PcapError> {
        self.frames += 1;
        self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(at.as_ns()),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: vec![],
        })?;
        Ok(())
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// I/O errors of the file.
    pub fn close(self) -> std::io::Result<()> {
        use std::io::Write;
        self.writer.into_inner().flush()
    }
}
