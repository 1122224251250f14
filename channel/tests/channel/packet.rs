//! Any bytes from a peer are an error, or a packet that encodes to the same bytes.

use proptest::prelude::*;
use transom_channel::Id;
use transom_channel::connection::Say;
use transom_channel::packet::{Body, EAGER, Eager, Envelope, LONGEST, Malformed, Packet, Values};
use transom_channel::rendezvous::Mover;
use transom_channel::wire::{Key, RAILS};

fn check(bytes: &[u8]) -> Result<Packet, Malformed> {
    let head = &bytes[..bytes.len().min(LONGEST)];
    let decoded = Packet::decode(head, bytes.len());
    // The short path decodes the same, or leaves the packet to the general path.
    if let Some(Ok(eager)) = head.first_chunk().map(|head| Eager::decode(head, bytes.len())) {
        assert_eq!(decoded, Ok((whole(eager), EAGER)));
        assert_eq!(eager.encode(), head[..EAGER]);
    }
    let (packet, header) = decoded?;
    if let Body::Eager { envelope, sync: None } = packet.body {
        let eager = Eager { source: packet.source, sequence: packet.sequence, values: packet.values, envelope };
        assert_eq!(eager.encode(), head[..EAGER]);
        assert_eq!(Eager::decode(head.first_chunk().unwrap(), bytes.len()), Ok(eager));
    }
    let mut again = [0xee; LONGEST];
    assert_eq!(packet.encode(&mut again), header);
    assert_eq!(again[..header], bytes[..header]);
    assert_eq!(packet.body.data(), (bytes.len() - header) as u64);
    Ok(packet)
}

fn whole(eager: Eager) -> Packet {
    let Eager { source, sequence, values, envelope } = eager;
    Packet { source, sequence, values, body: Body::Eager { envelope, sync: None } }
}

fn id() -> impl Strategy<Value = Id> {
    (1u64 << 32..).prop_map(|id| Id::from_wire(id).unwrap())
}

fn keys() -> impl Strategy<Value = [Option<Key>; RAILS]> {
    prop::array::uniform4(prop::option::of(
        (any::<u64>(), any::<u64>()).prop_map(|(address, key)| Key { address, key }),
    ))
}

fn envelope(most: u64) -> impl Strategy<Value = Envelope> {
    (any::<u32>(), any::<u32>(), 0..most).prop_map(|(context, tag, length)| Envelope { context, tag, length })
}

fn body() -> impl Strategy<Value = Body> {
    let long = 1u64 << 62;
    prop_oneof![
        (envelope(300), prop::option::of(id())).prop_map(|(envelope, sync)| Body::Eager { envelope, sync }),
        (envelope(long), id(), keys()).prop_map(|(envelope, sender, keys)| Body::Rts { envelope, sender, keys }),
        (id(), id(), prop_oneof![Just(Mover::Copy), Just(Mover::Write)], 0..long, keys())
            .prop_map(|(sender, receiver, mover, length, keys)| Body::Cts { sender, receiver, mover, length, keys }),
        id().prop_map(|receiver| Body::Nak { receiver }),
        (id(), 0..long, 0u32..300).prop_map(|(receiver, offset, length)| Body::Data { receiver, offset, length }),
        (id(), 1..=RAILS as u8).prop_map(|(receiver, lanes)| Body::Fin { receiver, lanes }),
        id().prop_map(|sender| Body::Ack { sender }),
        id().prop_map(|sender| Body::Discarded { sender }),
        (any::<u16>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
            |(ring, slots, bytes, address, key)| Body::Join { ring, slots, bytes, key: Key { address, key } }
        ),
        any::<u16>().prop_map(|ring| Body::Leave { ring }),
        any::<u16>().prop_map(|ring| Body::Left { ring }),
        Just(Body::Control),
        (envelope(long), prop::option::of(id()), 1u32..300, any::<u64>()).prop_map(|(envelope, sync, length, at)| {
            let envelope = Envelope { length: envelope.length.max(300), ..envelope };
            Body::Piece { envelope, sync, at: at % (envelope.length - u64::from(length) + 1), length }
        }),
        prop::sample::select(&Say::ALL[..]).prop_map(|say| Body::Link { say }),
        (0..RAILS as u8, any::<[u32; 3]>()).prop_map(|(rail, [epoch, heard, came])| Body::Cut {
            rail,
            epoch,
            heard,
            came
        }),
    ]
}

prop_compose! {
    fn packet()(source: u32, sequence: u32, ack: u32, granted: u32, freed: u32, ring: u16, body in body()) -> Packet {
        Packet { source, sequence, values: Values { ack, granted, freed, ring }, body }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::model::rounds(4096) as u32))]

    #[test]
    fn arbitrary_bytes_decode_or_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0u8..17, sane: bool) {
        // Mostly bytes that pass the first checks.
        if sane && bytes.len() >= 32 {
            (bytes[0], bytes[1]) = (kind, 0);
            bytes[24..32].fill(0);
        }
        let _ = check(&bytes);
    }

    #[test]
    fn encoded_packet_decodes_to_itself(packet in packet()) {
        let mut bytes = vec![0; LONGEST];
        let header = packet.encode((&mut bytes[..]).try_into().unwrap());
        bytes.resize(header + packet.body.data() as usize, 7);
        prop_assert_eq!(check(&bytes), Ok(packet));
    }

    #[test]
    fn altered_packet_decodes_or_is_refused(packet in packet(), at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
        let mut bytes = vec![0; LONGEST];
        let header = packet.encode((&mut bytes[..]).try_into().unwrap());
        bytes.resize(header + packet.body.data() as usize, 7);
        prop_assert!(check(&bytes[..cut.index(header)]).is_err());
        let at = at.index(header);
        bytes[at] = to;
        let _ = check(&bytes);
    }
}

#[test]
fn malformed_packet_error_names_the_defect() {
    let ack = Packet {
        source: 0,
        sequence: 0,
        values: Values::default(),
        body: Body::Ack { sender: Id::from_wire(1 << 32).unwrap() },
    };
    let mut bytes = [0; LONGEST];
    let header = ack.encode(&mut bytes);
    assert_eq!(header, 40);
    let says = |bytes: &[u8]| check(bytes).unwrap_err().to_string();
    assert_eq!(says(&bytes[..39]), "39 bytes, expected a header of 40");
    assert_eq!(says(&bytes[..41]), "1 bytes of data, expected 0 as in the header");
    bytes[36] = 0;
    assert_eq!(says(&bytes[..40]), "0 is no value of the field request");
    bytes[1] = 1;
    assert_eq!(says(&bytes[..40]), "the reserved field flags is not 0");
    (bytes[0], bytes[1]) = (17, 0);
    assert_eq!(says(&bytes[..40]), "unknown packet kind 17");
    bytes[0] = 1;
    assert_eq!(says(&bytes[..31]), "31 bytes, expected a header of 32");
}
