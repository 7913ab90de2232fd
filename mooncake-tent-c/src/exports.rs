//! The functions of the header.

#![expect(unsafe_code, reason = "C calls these by name")]

use std::{
    ffi::{c_char, c_int, c_void},
    mem::MaybeUninit,
    time::Duration,
};

use mooncake_tent::Notification;

use crate::{
    batches,
    engine::CEngine,
    failure::{self, Failure, Result, answer, call},
    raw::{Array, Room, Text, lend, null, take_back},
    structures::{self, MemoryOptions, NotifiInfo, Request, SegmentInfo, Status},
};

/// `tent_engine_t` as most functions take it; `None`: NULL.
type Engine<'a> = Option<&'a CEngine>;

fn engine(engine: Engine<'_>) -> Result<&CEngine> {
    engine.ok_or_else(|| null("the engine"))
}

/// Where an answer goes, which C need not have written to before.
type Place<'a, T> = Option<&'a mut MaybeUninit<T>>;

fn out<'a, T>(place: Place<'a, T>, what: &str) -> Result<&'a mut MaybeUninit<T>> {
    place.ok_or_else(|| null(what))
}

#[unsafe(no_mangle)]
pub extern "C" fn tent_last_error() -> *const c_char {
    failure::last()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_load_config_from_file(path: Text) {
    call(|| {
        crate::settings::stage_file(path.get()?);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_set_config(key: Text, value: Text) {
    call(|| {
        crate::settings::stage(key.required("the key")?, value.get()?);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn tent_create_engine() -> Option<Box<CEngine>> {
    answer(None, || Ok(Some(Box::new(CEngine::create()?))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_destroy_engine(engine: Option<Box<CEngine>>) {
    call(|| engine.map_or(Ok(()), |engine| engine.destroy()));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_available(engine: Engine<'_>) -> c_int {
    engine.is_some().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_segment_name(
    from: Engine<'_>,
    mut buf: Room<c_char>,
    buf_len: usize,
) -> c_int {
    call(|| buf.put(buf_len, engine(from)?.segment_name(), "the buffer"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_rpc_server_addr_port(
    from: Engine<'_>,
    mut addr_buf: Room<c_char>,
    buf_len: usize,
    port: Place<'_, u16>,
) -> c_int {
    call(|| {
        let address = engine(from)?.address();
        addr_buf.put(buf_len, &address.ip().to_string(), "the buffer")?;
        out(port, "the port")?.write(address.port());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_open_segment(
    with: Engine<'_>,
    handle: Place<'_, u64>,
    segment_name: Text,
) -> c_int {
    call(|| {
        let handle = out(handle, "the handle")?;
        let engine = engine(with)?;
        let name = segment_name.required("the name")?;
        // Its own name means the segment that is always open.
        handle.write(match name.is_empty() || name == engine.segment_name() {
            true => 0,
            false => engine.open_segment(name)?,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_close_segment(with: Engine<'_>, handle: u64) -> c_int {
    call(|| match handle {
        0 => engine(with).map(|_| ()),
        handle => engine(with)?.close_segment(handle),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_get_segment_info(
    with: Engine<'_>,
    handle: u64,
    info: Place<'_, SegmentInfo>,
) -> c_int {
    call(|| {
        let info = out(info, "the info")?;
        info.write(engine(with)?.segment_info(handle)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_free_segment_info(info: Option<&mut SegmentInfo>) {
    if let Some(info) = info {
        let buffers = std::mem::replace(&mut info.buffers, std::ptr::null_mut());
        take_back(buffers, usize::try_from(info.num_buffers).unwrap_or(0));
        info.num_buffers = 0;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_allocate_memory(
    with: Engine<'_>,
    addr: Place<'_, *mut c_void>,
    size: usize,
    location: Text,
) -> c_int {
    call(|| {
        let options = MemoryOptions::at(location.get()?.unwrap_or("*"));
        allocate(with, addr, size, &options)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_allocate_memory_ex(
    with: Engine<'_>,
    addr: Place<'_, *mut c_void>,
    size: usize,
    opts: Option<&MemoryOptions>,
) -> c_int {
    call(|| allocate(with, addr, size, opts.unwrap_or(&MemoryOptions::ANY)))
}

fn allocate(
    with: Engine<'_>,
    addr: Place<'_, *mut c_void>,
    size: usize,
    options: &MemoryOptions,
) -> Result<()> {
    let addr = out(addr, "the address")?;
    let allocated = engine(with)?.allocate(size, options)?;
    addr.write(std::ptr::with_exposed_provenance_mut(allocated as usize));
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_free_memory(with: Engine<'_>, addr: *mut c_void) -> c_int {
    call(|| engine(with)?.leave(addr as u64, 0, true))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_register_memory(
    with: Engine<'_>,
    addr: *mut c_void,
    size: usize,
) -> c_int {
    call(|| engine(with)?.register(addr.cast(), size, &MemoryOptions::ANY))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_register_memory_with_perm(
    with: Engine<'_>,
    addr: *mut c_void,
    size: usize,
    permission: c_int,
) -> c_int {
    call(|| engine(with)?.register(addr.cast(), size, &MemoryOptions::with(permission)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_register_memory_ex(
    with: Engine<'_>,
    addr: *mut c_void,
    size: usize,
    opts: Option<&MemoryOptions>,
) -> c_int {
    let options = opts.unwrap_or(&MemoryOptions::ANY);
    call(|| engine(with)?.register(addr.cast(), size, options))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_register_memory_batch(
    with: Engine<'_>,
    addrs: Array<*mut c_void>,
    sizes: Array<usize>,
    count: usize,
    permission: c_int,
) -> c_int {
    call(|| {
        register_all(
            with,
            &addrs,
            &sizes,
            count,
            &MemoryOptions::with(permission),
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_register_memory_batch_ex(
    with: Engine<'_>,
    addrs: Array<*mut c_void>,
    sizes: Array<usize>,
    count: usize,
    opts: Option<&MemoryOptions>,
) -> c_int {
    let options = opts.unwrap_or(&MemoryOptions::ANY);
    call(|| register_all(with, &addrs, &sizes, count, options))
}

fn register_all(
    with: Engine<'_>,
    addrs: &Array<*mut c_void>,
    sizes: &Array<usize>,
    count: usize,
    options: &MemoryOptions,
) -> Result<()> {
    let engine = engine(with)?;
    let addrs = addrs.of(count, "the addresses")?;
    let sizes = sizes.of(count, "the sizes")?;
    for (number, (addr, size)) in addrs.iter().zip(sizes).enumerate() {
        let registered = engine.register(addr.cast(), *size, options);
        if let Err(why) = registered {
            // None of them, if not all. Nobody uses those yet.
            for (addr, size) in addrs[..number].iter().zip(sizes) {
                let _left = engine.leave(*addr as u64, *size as u64, false);
            }
            return Err(why.of(number));
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_unregister_memory(
    with: Engine<'_>,
    addr: *mut c_void,
    size: usize,
) -> c_int {
    call(|| engine(with)?.leave(addr as u64, size as u64, false))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_unregister_memory_batch(
    with: Engine<'_>,
    addrs: Array<*mut c_void>,
    sizes: Array<usize>,
    count: usize,
) -> c_int {
    call(|| {
        let engine = engine(with)?;
        let addrs = addrs.of(count, "the addresses")?;
        let sizes = sizes.if_any(count);
        let mut all = Ok(());
        for (number, addr) in addrs.iter().enumerate() {
            let size = sizes.map_or(0, |sizes| sizes[number]);
            let left = engine.leave(*addr as u64, size as u64, false);
            // The first reason is told.
            if let (Ok(()), Err(why)) = (&all, left) {
                all = Err(why.of(number));
            }
        }
        all
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_allocate_batch(with: Engine<'_>, batch_size: usize) -> u64 {
    answer(0, || Ok(engine(with)?.allocate_batch(batch_size)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_free_batch(with: Engine<'_>, batch_id: u64) -> c_int {
    call(|| engine(with)?.batches.remove(batch_id))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_submit(
    with: Engine<'_>,
    batch_id: u64,
    entries: Array<Request>,
    count: usize,
) -> c_int {
    call(|| engine(with)?.submit(batch_id, entries.of(count, "the requests")?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_submit_notif(
    with: Engine<'_>,
    batch_id: u64,
    entries: Array<Request>,
    count: usize,
    name: Text,
    message: Text,
) -> c_int {
    call(|| {
        let notification = notification(&name, &message)?;
        let entries = entries.of(count, "the requests")?;
        engine(with)?.submit_and_notify(batch_id, entries, notification)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_send_notifs(
    with: Engine<'_>,
    handle: u64,
    name: Text,
    message: Text,
) -> c_int {
    call(|| engine(with)?.notify(handle, notification(&name, &message)?))
}

fn notification(name: &Text, message: &Text) -> Result<Notification> {
    structures::notification(name.required("the name")?, message.required("the message")?)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_recv_notifs(with: Engine<'_>, info: Place<'_, NotifiInfo>) -> c_int {
    call(|| {
        let info = out(info, "the info")?;
        let records = engine(with)?.notifications();
        info.write(NotifiInfo {
            // The engine keeps far fewer.
            num_records: c_int::try_from(records.len()).unwrap_or(c_int::MAX),
            records: lend(records),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_free_notifs(info: Option<&mut NotifiInfo>) {
    if let Some(info) = info {
        let records = std::mem::replace(&mut info.records, std::ptr::null_mut());
        take_back(records, usize::try_from(info.num_records).unwrap_or(0));
        info.num_records = 0;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_cancel_task(
    with: Engine<'_>,
    batch_id: u64,
    task_id: usize,
) -> c_int {
    call(|| {
        let batch = engine(with)?.batches.get(batch_id)?;
        let batch = batch.read();
        batches::status(&batch, task_id)?;
        batch.cancel(task_id);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_task_status(
    with: Engine<'_>,
    batch_id: u64,
    task_id: usize,
    status: Place<'_, Status>,
) -> c_int {
    call(|| {
        let batch = engine(with)?.batches.get(batch_id)?;
        out(status, "the status")?.write(batches::status(&batch.read(), task_id)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_task_status_list(
    with: Engine<'_>,
    batch_id: u64,
    mut statuses: Room<Status>,
    count: Option<&mut usize>,
) -> c_int {
    call(|| {
        let count = count.ok_or_else(|| null("the count"))?;
        let batch = engine(with)?.batches.get(batch_id)?;
        let batch = batch.read();
        let all = (0..batch.len()).map(|task| batches::status(&batch, task));
        let all = all.collect::<Result<Vec<_>>>()?;
        let room = std::mem::replace(count, all.len());
        statuses.fill(room, &all, "the list")
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_overall_status(
    with: Engine<'_>,
    batch_id: u64,
    status: Place<'_, Status>,
) -> c_int {
    call(|| {
        let batch = engine(with)?.batches.get(batch_id)?;
        out(status, "the status")?.write(batches::overall(&batch.read()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tent_wait_batch(
    with: Engine<'_>,
    batch_id: u64,
    timeout_us: u64,
) -> c_int {
    call(|| {
        let batch = engine(with)?.batches.get(batch_id)?;
        let budget = Duration::from_micros(timeout_us);
        match batches::wait(&batch, budget) {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "some tasks have not ended after {budget:?}"
            ))),
        }
    })
}
