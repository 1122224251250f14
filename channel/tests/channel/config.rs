//! Configurations parsed from text, and the errors for invalid text.

use transom_channel::pipe::{self, Step};
use transom_channel::polling::Order;
use transom_channel::ring::{CompletionFlag, RingConfig};
use transom_channel::rules::Rules;
use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::striping::{Spread, Stripe};
use transom_channel::wire::Rail;
use transom_channel::{Changes, Config, FIELDS, Misconfigured, NAMED, Paths, RecvTarget, Select};

fn config(text: &str) -> Config {
    text.parse::<Changes>().unwrap_or_else(|error| panic!("{text}: {error}")).of(Config::default())
}

fn refused(text: &str) -> String {
    text.parse::<Changes>().expect_err(text).to_string()
}

#[test]
fn config_text_sets_every_field() {
    let all = config(
        "eager=100,ring_slots=2,ring_bytes=136,marker=second, rings=0,ring_after=3,order=recent,window=2,zero_copy_from=1,\
         spread=window:64,stripe=even,stripe_from=5,offer=no,read_waiting=yes,credit_delay=7,budget=0,overdraft=64,pipe=piggyback,pipe_chunk=64,pipe_chunks=1024,\
         pipe_zero_copy_from=9,paths=ud,connections=4,connect_after=0,count_windows=yes,ud_lanes=16,ud_buffers=64,checksum=yes,rules=MSG_SIZE < 7, UD-SR, TRUE, Copy-Based",
    );
    let Config { floor, batch, .. } = Config::default();
    let expected = Config {
        eager: 100,
        ring: RingConfig { slots: 2, bytes: 136 },
        marker: Some(CompletionFlag::Second),
        rings: 0,
        ring_after: 3,
        order: Order::RecentFirst,
        window: 2,
        floor,
        budget: 0,
        overdraft: 64,
        credit_delay: 7,
        zero_copy_from: 1,
        spread: Spread::Window(64),
        stripe: Stripe::Even,
        stripe_from: 5,
        offer: false,
        read_waiting: true,
        batch,
        pipe: pipe::Config { step: Step::Piggyback, chunk: 64, chunks: 1024, zero_copy_from: 9 },
        rules: Some("MSG_SIZE < 7, UD-SR, TRUE, Copy-Based".parse().unwrap()),
        connections: 4,
        connect_after: 0,
        count_windows: true,
        paths: Paths::Datagrams,
        ud_lanes: 16,
        ud_buffers: 64,
        checksum: true,
    };
    assert_eq!(all, expected);
    for (text, order) in [("sequential", Order::Sequential), ("circular", Order::Circular)] {
        assert_eq!(config(&format!("order={text}")).order, order);
    }
    for (text, marker) in
        [("rail", None), ("last", Some(CompletionFlag::Last)), ("immediate", Some(CompletionFlag::Immediate))]
    {
        assert_eq!(config(&format!("marker={text}")).marker, marker);
    }
    assert!(config("offer=yes").offer);
    for (text, spread) in [
        ("first", Spread::First),
        ("binding", Spread::Binding),
        ("round_robin", Spread::RoundRobin),
        ("weighted", Spread::Weighted),
    ] {
        assert_eq!(config(&format!("spread={text}")).spread, spread);
    }
    for (text, stripe) in [
        ("weighted", Stripe::Weighted),
        ("weights:64:1", Stripe::Given([64, 1, 0, 0])),
        ("binding", Stripe::Binding),
        ("adaptive", Stripe::Adaptive),
        ("pull", Stripe::Pull),
    ] {
        assert_eq!(config(&format!("stripe={text}")).stripe, stripe);
    }
    for (text, step) in
        [("basic", Step::Basic), ("pipeline", Step::Pipeline), ("read", Step::Read), ("write", Step::Write)]
    {
        assert_eq!(config(&format!("pipe={text}")).pipe.step, step);
    }
    // Fields that the text does not name keep their values.
    let base = Config { eager: 1, window: 9, ..Config::default() };
    assert_eq!("eager=2".parse::<Changes>().unwrap().of(base.clone()), Config { eager: 2, ..base });
    assert_eq!((config(""), config(",")), (Config::default(), Config::default()));
}

#[test]
fn invalid_config_error_names_the_expected_values() {
    assert_eq!(
        refused("egaer=1"),
        "unknown field \"egaer\"; expected one of eager, ring_slots, ring_bytes, marker, rings, ring_after, order, window, \
         zero_copy_from, spread, stripe, stripe_from, offer, read_waiting, credit_delay, budget, overdraft, pipe, pipe_chunk, pipe_chunks, \
         pipe_zero_copy_from, paths, connections, connect_after, count_windows, ud_lanes, ud_buffers, checksum, rules"
    );
    assert_eq!(refused("rings"), "\"rings\" is neither FIELD=VALUE nor one of ics, ipdps, multirail, aptus, rc, ud");
    assert_eq!(
        refused("rings=1, rules=MSG_SIZE <= 10 RC-SR"),
        "rules: line 1, column 16: found `RC-SR`, expected , or AND"
    );
    assert_eq!(refused("rings=1,window=4,rings=2"), "rings is set twice");
    assert_eq!(refused("window=1"), "window is 1, expected 2 to 1024");
    assert_eq!(refused("window=1025"), "window is 1025, expected 2 to 1024");
    assert_eq!(refused("order=random"), "order is random, expected sequential, circular or recent");
    assert_eq!(refused("pipe=both"), "pipe is both, expected basic, piggyback, pipeline, read or write");
    for text in [
        "eager=x",
        "eager=",
        "eager=-1",
        "eager=18446744073709551616",
        "eager=1073741825",
        "ring_slots=1",
        "ring_slots=1025",
        "ring_bytes=135",
        "ring_bytes=128",
        "ring_bytes=65544",
        "marker=flags",
        "rings=many",
        "ring_after=-1",
        "zero_copy_from=0",
        "offer=maybe",
        "spread=window",
        "spread=window:0",
        "spread=window:65",
        "stripe=odd",
        "stripe=weights",
        "stripe=weights:",
        "stripe=weights:0:1",
        "stripe=weights:4:0:1",
        "stripe=weights:65",
        "stripe=weights:1:1:1:1:1",
        "ud_buffers=63",
        "ud_buffers=16385",
        "budget=1073741825",
        "overdraft=63",
        "overdraft=1073741825",
        "pipe_chunk=60",
        "pipe_chunk=65537",
        "pipe_chunks=1",
        "pipe_chunks=65",
    ] {
        let (name, _) = text.split_once('=').unwrap();
        let field = FIELDS.iter().find(|field| field.name == name).unwrap();
        let error = text.parse::<Changes>().expect_err(text);
        assert!(matches!(error, Misconfigured::Value { field, .. } if field == name), "{text}: {error}");
        assert!(error.to_string().ends_with(field.must), "{text}: {error}");
    }
    // The largest valid values.
    config("window=1024,ring_slots=1024,ring_bytes=65536,budget=1073741824,pipe_chunk=65536");
    config("ring_slots=2,ring_bytes=136,pipe_chunk=64,pipe_chunks=2");
}

#[test]
fn field_value_reads_back_as_config() {
    let fields: Vec<_> =
        FIELDS.iter().map(|field| format!("{}={}", field.name, field.value(&Config::default()))).collect();
    let expected = "eager=8192,ring_slots=32,ring_bytes=2048,marker=rail,rings=8,ring_after=16,order=circular,window=64,\
                    zero_copy_from=32768,spread=first,stripe=adaptive,stripe_from=65536,offer=yes,read_waiting=no,credit_delay=50000,budget=4194304,overdraft=1073741824,pipe=read,\
                    pipe_chunk=16384,pipe_chunks=16,pipe_zero_copy_from=32768,paths=rc,connections=16,connect_after=16,count_windows=no,ud_lanes=4,ud_buffers=1024,checksum=no,rules=MSG_SIZE <= 8192, RC-FP, \
                    MSG_SIZE <= 8192, RC-SR, MSG_SIZE <= 8192, UD-SR, MSG_SIZE < 32768, Copy-Based, TRUE, RC-RDMA, TRUE, UD-ZCopy, TRUE, Copy-Based";
    assert_eq!(fields.join(","), expected);
    let said = config(expected);
    assert_eq!(said.rules, Some(Rules::usual(8192, 32768)));
    assert_eq!(Config { rules: None, ..said }, Config::default());
}

#[test]
fn named_config_applies_before_field_overrides() {
    let aptus = config("aptus");
    assert_eq!((aptus.paths, aptus.rings, aptus.ring_after), (Paths::Both, 8, 32));
    assert_eq!((aptus.connections, aptus.connect_after), (16, 16));
    assert!(
        aptus.rules.as_ref().unwrap().to_string().starts_with("MSG_SIZE <= 2048, RC-FP, MSG_SIZE <= 2008, UD-SR, ")
    );
    for text in ["aptus,rings=3", "rings=3, aptus"] {
        assert_eq!(config(text), Config { rings: 3, ..aptus.clone() });
    }
    assert_eq!(refused("aptus,rings=3,rings=4"), "rings is set twice");
    let (ics, ud, rails) = (config("ics"), config("ud"), config("multirail"));
    assert_eq!((ics.ring, ics.offer, ics.eager), (RingConfig { slots: 100, bytes: 2048 }, false, 2008));
    assert_eq!((ud.paths, ud.rings), (Paths::Datagrams, 0));
    assert_eq!((rails.spread, rails.stripe, rails.offer), (Spread::RoundRobin, Stripe::Adaptive, false));
    // Each named configuration is valid.
    for named in NAMED {
        assert_eq!(config(named.name).check(), Ok(()), "{}", named.name);
    }
}

#[test]
fn rules_are_read_from_a_file() {
    let path = std::env::temp_dir().join(format!("transom-rules-{}", std::process::id()));
    std::fs::write(&path, "# Short ones.\nMSG_SIZE <= 9, UD-SR,\nTRUE, Copy-Based,\n").unwrap();
    let said = config(&format!("window=9,rules=@{}", path.display()));
    assert_eq!(said.window, 9);
    assert_eq!(said.rules.unwrap().to_string(), "MSG_SIZE <= 9, UD-SR, TRUE, Copy-Based");
    std::fs::write(&path, "MSG_SIZE <= 9, UD-SR,\nTRUE, RC-RDMA\n").unwrap();
    let error = refused(&format!("rules=@{}", path.display()));
    assert!(error.starts_with("rules: line 2, column 1: the last rule may have no path"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = refused(&format!("rules=@{}", path.display()));
    assert!(error.starts_with("rules: cannot read the file "), "{error}");
}

/// The largest numbers that the parser accepts cause no overflow in later arithmetic.
#[test]
fn largest_config_numbers_do_not_overflow() {
    let config = config("credit_delay=18446744073709551615, stripe_from=18446744073709551615");
    let mut sim = Sim::new(1, 2, Conditions::default(), &config).unwrap();
    let length = 1 << 20;
    sim.engine(1)
        .receive(Select { context: 0, source: None, tag: None }, RecvTarget::Into(SimMemory::zero(length), length));
    sim.engine(0).send(1, 0, 0, SimMemory::zero(length), length, false);
    (0..2).for_each(|rank| sim.wake(rank, 0));
    // Stop once both are done: with the largest delay, credits are reported only at the end of time.
    let mut done = [false; 2];
    while done != [true; 2] {
        let rank = sim.step().expect("the simulation stopped before both transfers completed");
        done[rank as usize] |= sim.engine(rank).completed().is_some();
    }
}

/// Number of packets, and of all requests, that a stream of short messages through a ring posts.
fn ring_posts(marker: &str, conditions: Conditions) -> Result<(u64, u64), Misconfigured> {
    let config = config(&format!("marker={marker},ring_after=1,ring_slots=100,offer=no"));
    let mut sim = Sim::new(1, 2, conditions, &config)?;
    for number in 0..64 {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 100), 100, false);
        sim.engine(1).receive(Select { context: 0, source: None, tag: None }, RecvTarget::Allocate);
        (0..2).for_each(|rank| sim.wake(rank, 0));
        while sim.step().is_some() {}
        assert_eq!(sim.engine(1).completed().unwrap().memory.unwrap().whose(100), Some(number));
    }
    Ok((sim.engine(0).counters().ring_packets, sim.posts(0)[0]))
}

#[test]
fn marker_unsupported_by_rail_is_refused() {
    let all = Conditions::default();
    let [(packets, last), (_, second), (_, immediate), (_, rail)] =
        ["last", "second", "immediate", "rail"].map(|marker| ring_posts(marker, all.clone()).unwrap());
    assert!(packets > 50, "{packets}");
    assert_eq!((second, immediate, rail), (last + packets, last, last));
    let of = |change: fn(&mut Rail)| {
        let mut conditions = all.clone();
        change(&mut conditions.rails[0]);
        conditions
    };
    let why = |marker, conditions| ring_posts(marker, conditions).expect_err(marker).to_string();
    assert_eq!(
        why("last", of(|rail| rail.mark_last = false)),
        "marker=last is not supported by any rail: the last byte of a write must become visible last; set marker=rail \
         to use a supported one, or rings=0 for no rings"
    );
    assert!(why("immediate", of(|rail| rail.immediate = false)).contains("writes must carry immediate values"));
    let torn = of(|rail| (rail.mark_last, rail.whole_word) = (false, false));
    assert!(why("second", torn).contains("an aligned word must be written atomically"));
    // With two rails a mark may be lost with its rail while its message is not.
    let mut two = all.clone();
    two.rails.push(two.rails[0]);
    assert!(why("second", two).contains("no other rail"));
    // Without rings no marker is needed.
    let config = Config { marker: Some(CompletionFlag::Immediate), rings: 0, ..Config::default() };
    assert!(Sim::new(1, 2, of(|rail| rail.immediate = false), &config).is_ok());
}
