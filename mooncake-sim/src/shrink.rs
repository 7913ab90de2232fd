//! From a plan that breaks a promise to a small one that still does.

use crate::{Plan, Violation, run};

/// Leaves out operations and faults as long as some promise is still broken: halves first, then
/// smaller parts. The result repeats the violation that comes with it.
#[must_use]
pub fn shrink(plan: Plan, violation: Violation) -> (Plan, Violation) {
    let mut best = (plan, violation);
    loop {
        let before = size(&best.0);
        best = thin(best, Plan::faults, |plan, kept| plan.keep(None, Some(kept)));
        best = thin(best, Plan::operations, |plan, kept| {
            plan.keep(Some(kept), None)
        });
        if size(&best.0) == before {
            return best;
        }
    }
}

fn size(plan: &Plan) -> usize {
    plan.operations().len() + plan.faults().len()
}

fn thin(
    mut best: (Plan, Violation),
    items: impl Fn(&Plan) -> Vec<usize>,
    keep: impl Fn(Plan, &[usize]) -> Plan,
) -> (Plan, Violation) {
    let mut part = items(&best.0).len();
    while part > 0 {
        let mut from = 0;
        loop {
            let all = items(&best.0);
            if from >= all.len() {
                break;
            }
            let to = (from + part).min(all.len());
            let kept = [&all[..from], &all[to..]].concat();
            let smaller = keep(best.0.clone(), &kept);
            match run(&smaller) {
                Err(violation) => best = (smaller, violation),
                Ok(_) => from = to,
            }
        }
        part /= 2;
    }
    best
}
