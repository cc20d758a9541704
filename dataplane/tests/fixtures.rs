//! The wire module against captures of a real RoCEv2 stack (Linux soft-RoCE).

use std::fs::File;
use std::path::PathBuf;

use dataplane::wire::{icrc_of_frame, Headers, Packet, Payload};
use pcap_file::pcap::PcapReader;

fn captures() -> Vec<(String, Vec<Vec<u8>>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/soft-roce");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the fixtures are part of the repository")
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
            let mut frames = Vec::new();
            while let Some(packet) = reader.next_packet() {
                frames.push(packet.unwrap().data.into_owned());
            }
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, frames)
        })
        .collect()
}

#[test]
fn every_packet_is_roce_with_a_right_icrc_and_is_rebuilt_byte_for_byte() {
    let captures = captures();
    assert_eq!(captures.len(), 9);
    let mut opcodes = std::collections::BTreeSet::new();
    for (name, frames) in captures {
        assert!(!frames.is_empty(), "{name}");
        for frame in frames {
            let packet = Packet::parse(&frame).unwrap_or_else(|e| panic!("{name}: {e}"));
            let Payload::Roce { roce, .. } = &packet.payload else {
                panic!("{name}: not RoCE")
            };
            opcodes.insert(roce.bth.opcode.0);
            assert_eq!(packet.emit(), frame, "{name}");
            let headers = Headers::parse(&frame).unwrap();
            let (expected, carried) = icrc_of_frame(&frame, &headers).unwrap();
            assert_eq!(expected, carried, "{name}");
        }
    }
    // RC send, write, read, acknowledge, atomics, and UC and UD sends are all there.
    for opcode in [
        0x00, 0x04, 0x06, 0x0a, 0x0c, 0x0d, 0x11, 0x12, 0x13, 0x14, 0x64,
    ] {
        assert!(opcodes.contains(&opcode), "{opcode:#x} of {opcodes:x?}");
    }
}

#[test]
fn marking_and_ttl_leave_icrc_and_checksum_right() {
    for (name, frames) in captures() {
        for frame in frames {
            let mut changed = frame.clone();
            let mut headers = Headers::parse(&changed).unwrap();
            headers.mark_ce(&mut changed);
            assert!(headers.decrement_ttl(&mut changed));
            let headers = Headers::parse(&changed).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(headers.tos & 3, 3);
            let (expected, carried) = icrc_of_frame(&changed, &headers).unwrap();
            assert_eq!(expected, carried, "{name}");
        }
    }
}
