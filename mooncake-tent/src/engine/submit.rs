//! From requests to tasks on links.

use std::{sync::Arc, time::Instant};

use super::{
    Batch, Request,
    parking::{Gated, Gatekeeper, feasible},
    parts::{Scratch, To},
    routing::{Errand, LastWay, Outlook},
    span,
    tent::Shared,
};
use crate::{
    error::{Error, Reason, Result, Stage, TransferError},
    identity::{Generation, RegistrationId},
    lane::Watch,
    platform::after,
    segment::{Segment, Span},
    trace::{Trace, TraceEvent},
    transport::{Op, Origin, Outcome, TaskRef, TaskSpec},
};

/// So many tasks are posted at once.
const TOGETHER: usize = 32;

impl Shared {
    pub(super) fn submit(&self, batch: &mut Batch, requests: Vec<Request>) -> Result<()> {
        if batch.len() + requests.len() > batch.capacity() {
            return Err(Error::Busy {
                what: "the batch",
                limit: batch.capacity(),
            });
        }
        if span::is_wanted() {
            let span = self.span(&requests);
            return span.in_scope(|| self.submit_all(batch, requests, Some(&span)));
        }
        self.submit_all(batch, requests, None)
    }

    /// As [`submit`](Self::submit), past the gate: what these are parts of has been let in.
    pub(super) fn submit_inner(&self, batch: &mut Batch, requests: Vec<Request>) -> Result<()> {
        let mut scratch = batch.take_scratch();
        scratch.is_inner = true;
        batch.return_scratch(scratch);
        let submitted = self.submit(batch, requests);
        let mut scratch = batch.take_scratch();
        scratch.is_inner = false;
        batch.return_scratch(scratch);
        submitted
    }

    /// What the requests of `scratch` have to pass, if anything.
    fn gate_of(&self, scratch: &Scratch) -> Option<&Gatekeeper> {
        self.gate.as_ref().filter(|_| !scratch.is_inner)
    }

    fn submit_all(
        &self,
        batch: &mut Batch,
        requests: Vec<Request>,
        span: Option<&tracing::Span>,
    ) -> Result<()> {
        let mut scratch = batch.take_scratch();
        let submitted = self.submit_with(batch, requests, &mut scratch, span);
        match submitted {
            // The rest was taken out.
            Ok(()) => scratch.links.clear(),
            Err(_) => scratch.clear(),
        }
        batch.return_scratch(scratch);
        submitted
    }

    fn submit_with(
        &self,
        batch: &mut Batch,
        requests: Vec<Request>,
        scratch: &mut Scratch,
        span: Option<&tracing::Span>,
    ) -> Result<()> {
        let now = Instant::now();
        let patience = now.checked_add(self.parts.patience);
        let patience = patience.unwrap_or_else(|| after(self.parts.patience));
        scratch.submissions = scratch.submissions.wrapping_add(1);
        scratch.specs.reserve(requests.len());
        scratch.links.reserve(requests.len());
        let mut requests = requests.into_iter();
        while let Some(first) = requests.as_slice().first() {
            let outlook = Outlook::of(&first.segment);
            let mut last = None;
            let serves = |request: &Request| outlook.segment.is(&request.segment);
            while requests.as_slice().first().is_some_and(serves) {
                let request = requests.next().expect("it is the first");
                self.plan(request, (now, patience), &outlook, &mut last, scratch)?;
            }
        }
        if let Some(span) = span {
            self.record_links(span, &scratch.links);
        }
        if let Some(gate) = self.gate_of(scratch) {
            let admitted = gate.0.admit(scratch);
            admitted.inspect_err(|_| self.tally.refused.one())?;
        }
        let first = batch.len();
        let (state, refs) = batch.opened();
        let tasks = &self.parts.context.tasks;
        let taken = tasks.take(state, scratch.specs.len(), refs);
        if let (Err(_), Some(gate)) = (&taken, self.gate_of(scratch)) {
            gate.0.forget(scratch);
        }
        taken?;
        self.post(batch, first, scratch, now);
        Ok(())
    }

    /// Adds what becomes of a request.
    fn plan<'a>(
        &self,
        mut request: Request,
        (now, patience): (Instant, Instant),
        outlook: &'a Outlook,
        last: &mut Option<LastWay<'a>>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (length, trace) = (request.length(), request.trace.take());
        if length == 0 {
            return Err(Error::Invalid(
                "a request moves at least one byte".to_owned(),
            ));
        }
        if request.op == Op::Read && !request.receipt.is_none() {
            return Err(Error::Invalid(
                "only a write has an op id or a checksum at its target".to_owned(),
            ));
        }
        let deadline = request.deadline.unwrap_or(patience);
        let bounds = self
            .gate_of(scratch)
            .map(|gate| gate.0.bind(&mut request.qos));
        let span = (outlook.known).resolve(request.op, request.remote, length, || self.names());
        let registration = span.map(|span| span.registration);
        let errand = Errand::of(&request, length, registration);
        let pass = self.best(&errand, outlook, last, now)?;
        let best = last.as_ref().expect("it was just found");
        let way = best.way();
        let (link, estimate) = (way.link, way.estimate);
        let others = best.others && bounds.is_none_or(|bounds| bounds.fallback);
        if bounds.is_some() && request.deadline.is_some() {
            let left = deadline.saturating_duration_since(now);
            let name = self.parts.links[usize::from(link)].name();
            feasible(name, &way.lane, (request.op, length), left)
                .inspect_err(|_| self.tally.infeasible.one())?;
        }
        if let Some(trace) = trace {
            let link = self.parts.links[usize::from(link)].name();
            let errand = Errand::of(&request, length, registration);
            self.trace_plan(&trace, &errand, &request.segment, link);
            scratch.traces.push((scratch.specs.len(), trace));
        }
        let (terms, meter) = (way.terms.clone(), way.meter);
        if pass.is_some() || scratch.is_sample() {
            let (lane, since) = (Arc::clone(&way.lane), now);
            let watch = Watch { lane, since, pass };
            scratch.watches.push((scratch.specs.len(), watch));
        }
        let Outlook { fences, known, .. } = outlook;
        // Neither our own descriptor nor that of a link is ever stale: there is nothing to learn.
        let own = known.descriptor.incarnation() == self.parts.context.incarnation;
        let refreshable = !own && request.segment.provider().is_none();
        let others = others && refreshable && self.parts.attempts.failovers > 0;
        let end = match others {
            true => self.parts.attempts.end(now, deadline, true, estimate),
            false => deadline,
        };
        let Span {
            registration,
            generation,
            offset,
        } = span.unwrap_or(Span {
            registration: RegistrationId(0),
            generation: Generation(0),
            offset: 0,
        });
        if let Some(bounds) = bounds {
            let gated = Gated::new(bounds, deadline, &request.segment, *fences);
            scratch.gated.push(gated);
        }
        let spec = TaskSpec {
            op: request.op,
            local: request.local,
            peer: scratch.peer(known.descriptor.peer()),
            registration,
            generation,
            offset,
            length,
            deadline: Some(end),
            receipt: request.receipt,
            qos: request.qos,
            terms,
            meter,
            origin: refreshable.then_some(Origin {
                segment: request.segment,
                range: request.remote,
                deadline: Some(deadline),
                fences: *fences,
                link,
                others,
                tried: 0,
                refreshed: false,
                resumed: false,
            }),
        };
        scratch.specs.push((spec, refreshable));
        scratch.links.push(match span {
            Some(_) => To::Link(usize::from(link)),
            None => To::Nowhere,
        });
        Ok(())
    }

    /// Tells a trace what was asked, and why `link` gets it.
    #[cold]
    fn trace_plan(
        &self,
        trace: &Trace,
        errand: &Errand<'_>,
        segment: &Segment,
        link: &'static str,
    ) {
        trace.note(TraceEvent::Submitted {
            segment: segment.name().to_owned(),
            op: errand.op,
            bytes: errand.length,
        });
        let ranking = self.why(errand, segment);
        trace.note(TraceEvent::Ranked { link, ranking });
    }

    /// Tells those traces whose tasks are among `tasks`, whose places begin at `start`, where these go.
    #[cold]
    fn trace_run(&self, traces: &[(usize, Trace)], start: usize, tasks: &[TaskRef], to: To) {
        for (place, trace) in traces {
            let task = place.checked_sub(start).and_then(|at| tasks.get(at));
            let Some(task) = task else {
                continue;
            };
            self.parts.context.tasks.follow(*task, trace.clone());
            match to {
                To::Later => trace.note(TraceEvent::Waits),
                To::Link(link) => {
                    let link = self.parts.links[link].name();
                    trace.note(TraceEvent::Posted { link });
                }
                To::Nowhere => {}
            }
        }
    }

    /// Hands the batch's tasks from `first` on to their links.
    fn post(&self, batch: &mut Batch, first: usize, scratch: &mut Scratch, now: Instant) {
        let gate = self.gate_of(scratch);
        let Scratch {
            specs,
            links,
            gated,
            watches,
            traces,
            ..
        } = scratch;
        let mut gate = gate.map(|gate| (gate, gated.drain(..)));
        let mut watched = 0;
        let mut specs = specs.drain(..);
        let mut start = first;
        // Neighbours on the same link are posted together, but so that the peer has begun with the
        // first of many before we are through with the last.
        let together = links
            .chunk_by(|a, b| a == b)
            .flat_map(|run| run.chunks(TOGETHER));
        for run in together {
            let end = start + run.len();
            let (state, refs) = batch.opened();
            let tasks = &self.parts.context.tasks;
            tasks.begin_at(now, state, &refs[start..end], &mut specs);
            while let Some((place, watch)) = watches.get(watched)
                && first + place < end
            {
                tasks.watch(refs[first + place], Some(watch.clone()));
                watched += 1;
            }
            if !traces.is_empty() {
                self.trace_run(traces, start - first, &refs[start..end], run[0]);
            }
            if let Some((gate, gated)) = &mut gate {
                let tasks = refs[start..end].iter();
                tasks
                    .zip(gated)
                    .for_each(|(task, gated)| gate.0.settle(*task, gated));
            }
            match run[0] {
                To::Later => {}
                To::Link(link) => {
                    let transport = &self.parts.links[link];
                    let capacity = batch.capacity();
                    let posted = batch
                        .sub_batch(start, link, || transport.allocate_sub_batch(capacity))
                        .and_then(|(tasks, sub_batch)| {
                            sub_batch.submit_transfer_tasks(&tasks[..run.len()])
                        });
                    if let Err(error) = posted {
                        tracing::debug!(%error, link = transport.name(), "posting failed");
                        self.refuse(&batch.refs()[start..end], &error);
                    }
                }
                To::Nowhere => {
                    let tasks = &batch.refs()[start..end];
                    self.fail(tasks, &Reason::UnknownRegistration, Stage::Resolve);
                }
            }
            start = end;
        }
        if watched > 0 {
            watches.clear();
        }
        traces.clear();
    }

    pub(super) fn fail(&self, tasks: &[TaskRef], reason: &Reason, stage: Stage) {
        self.fail_with(
            tasks,
            &TransferError::unstarted(reason.clone(), stage, None),
        );
    }

    /// A link takes none of `tasks`; whether a retry makes sense is for it to say.
    pub(super) fn refuse(&self, tasks: &[TaskRef], refusal: &Error) {
        let reason = Reason::Broken(refusal.to_string().into());
        let mut error = TransferError::unstarted(reason, Stage::Post, None);
        error.retry = refusal.retry();
        self.fail_with(tasks, &error);
    }

    fn fail_with(&self, tasks: &[TaskRef], error: &TransferError) {
        for task in tasks {
            let mut error = error.clone();
            let spec = self.parts.context.tasks.spec(*task);
            error.peer = spec.map(|spec| spec.peer.id());
            let end = Outcome::Failed(error);
            self.parts.context.tasks.finish(*task, end, true);
        }
    }
}
