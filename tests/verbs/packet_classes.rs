//! Service level and traffic class of packets, on a fake adapter that records those of address handles and queue pairs.

use crate::adapter::*;
use std::path::Path;
use transom::Window;

/// Connection requests use address handles, and everything else uses queue pairs.
#[test]
fn packets_have_the_classes_that_variables_name() {
    let name = "packets_have_the_classes_that_variables_name";
    let (routed, level, class) =
        (("TRANSOM_VERBS_GID", "0"), ("TRANSOM_VERBS_SL", "5"), ("TRANSOM_VERBS_TRAFFIC_CLASS", "104"));
    let rows = [
        (&[routed, level, class][..], ["ah 5 104", "qp 5 104"]),
        (&[routed, class], ["ah 0 104", "qp 0 104"]),
        (&[routed], ["ah 0 0", "qp 0 0"]),
        // Packets without a GRH have no traffic class.
        (&[level, class], ["ah 5 no GRH", "qp 5 no GRH"]),
    ];
    // A copy was started for one of the rows.
    let rows = if std::env::var_os(ROLE).is_some() { &rows[..1] } else { &rows };
    for (variables, expected) in rows {
        let expected = expected.join("\n");
        let variables = [*variables, &[("TRANSOM_INTRANODE", "off"), ("TEST_CLASSES", &expected)]].concat();
        on_fake(None, 2, name, &variables, |world| {
            let mut window: Window<u64> = world.allocate(1).unwrap();
            window.lock_exclusive(1 - world.rank()).unwrap().put(0, &[7]).unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().get(0).unwrap(), 7);
            let classes = Path::new(&std::env::var("FAKE_ADAPTER").unwrap()).join("classes");
            let classes = std::fs::read_to_string(classes).unwrap();
            let mut lines: Vec<_> = classes.lines().collect();
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines.join("\n"), std::env::var("TEST_CLASSES").unwrap());
            meet(&world).unwrap();
        });
    }
}
