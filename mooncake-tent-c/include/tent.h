/*
 * tent.h: the transfer engine of Mooncake, for programs in C.
 *
 * Functions return 0, or -1 with the reason in tent_last_error(). All of them may be called from any
 * thread. Names, constants and structures are those of the engine in C++.
 */
#ifndef TENT_API_H
#define TENT_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *tent_engine_t;
typedef uint64_t tent_segment_id_t;
/* 0 is no batch. */
typedef uint64_t tent_batch_id_t;

/* The segment of the engine itself. */
#ifndef LOCAL_SEGMENT_ID
#define LOCAL_SEGMENT_ID (0ull)
#endif

#define OPCODE_READ (0)
#define OPCODE_WRITE (1)

#define PRIORITY_HIGH (0)
#define PRIORITY_MEDIUM (1)
#define PRIORITY_LOW (2)

#define TRANSPORT_UNSPEC (0)
#define TRANSPORT_RDMA (1)
#define TRANSPORT_MNNVL (2)
#define TRANSPORT_SHM (3)
#define TRANSPORT_NVLINK (4)
#define TRANSPORT_GDS (5)
#define TRANSPORT_IOURING (6)
#define TRANSPORT_TCP (7)
#define TRANSPORT_ASCEND_DIRECT (8)
#define TRANSPORT_SUNRISE_LINK (9)
#define TRANSPORT_TPU (10)
#define TRANSPORT_UB (11)
#define TRANSPORT_MPCOMM (12)

/* Until tent_unregister_memory() has returned, or its task has completed, a task that was cancelled, timed
 * out or failed may still touch `source`. */
/* Moves `length` bytes between `source`, which is registered here, and `target_offset` of a segment:
 * an address in its owner's memory, or a place in a file. A batch may have requests of both kinds. */
typedef struct tent_request {
    int opcode;
    void *source;
    tent_segment_id_t target_id;
    uint64_t target_offset;
    uint64_t length;
    int priority;
    /* The transport to prefer, if it can carry the request. */
    int transport_hint;
} tent_request_t;

#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5)
#define STATUS_FAILED (6)

typedef struct tent_status {
    int status;
    uint64_t transferred_bytes;
} tent_status_t;

typedef struct tent_buffer_info {
    uint64_t base, length;
    char location[64];
} tent_buffer_info_t;

#define TYPE_MEMORY (0)
#define TYPE_FILE (1)

typedef struct tent_segment_info {
    int type;
    int num_buffers;
    tent_buffer_info_t *buffers;
} tent_segment_info_t;

/* `handle`: under which the segment of the sender is open here, or 0. Longer texts of senders in other
 * languages are cut off. */
typedef struct tent_notifi_record {
    tent_segment_id_t handle;
    char name[256];
    char msg[4096];
} tent_notifi_record_t;

/* `records` is NULL if there are none. */
typedef struct tent_notifi_info {
    int num_records;
    tent_notifi_record_t *records;
} tent_notifi_info_t;

#define PERM_LOCAL_READ_WRITE (0)
#define PERM_GLOBAL_READ_ONLY (1)
#define PERM_GLOBAL_READ_WRITE (2)

typedef struct tent_memory_options {
    /* "*", "cpu" or "cpu:N" for NUMA node N. */
    char location[64];
    int permission;
    /* TRANSPORT_UNSPEC; no single transport can be forced. */
    int transport_type;
    /* Empty and 0: allocated memory is shared without a name. */
    char shm_path[256];
    size_t shm_offset;
    /* Not 0: peers are not told of it, as with PERM_LOCAL_READ_WRITE. */
    int internal;
} tent_memory_options_t;

/* Why the last call of this thread failed. Valid until its next one; never NULL. */
const char *tent_last_error(void);

/* Settings for engines that this thread creates: of a JSON file, and one by one. The latter win. Keys
 * within objects are joined by '/', as in "transports/tcp/enable". */
void tent_load_config_from_file(const char *path);
void tent_set_config(const char *key, const char *value);

/* NULL: it does not start, for instance because a setting makes no sense. */
tent_engine_t tent_create_engine(void);
/* Ends all transfers. Registered memory is not touched any more when it returns, unless
 * tent_last_error() says so: then it has to stay. */
void tent_destroy_engine(tent_engine_t engine);
/* 1 or 0. */
int tent_available(tent_engine_t engine);

/* The name under which others open the segment of this engine. -1 if it does not fit. */
int tent_segment_name(tent_engine_t engine, char *buf, size_t buf_len);
int tent_rpc_server_addr_port(tent_engine_t engine, char *addr_buf, size_t buf_len, uint16_t *port);

/* Opens the segment of another engine, or a file: "file:///path", with "?write" to write to it. Waits
 * until its owner has answered. */
int tent_open_segment(tent_engine_t engine, tent_segment_id_t *handle, const char *segment_name);
int tent_close_segment(tent_engine_t engine, tent_segment_id_t handle);
int tent_get_segment_info(tent_engine_t engine, tent_segment_id_t handle, tent_segment_info_t *info);
void tent_free_segment_info(tent_segment_info_t *info);

/* Memory that peers on this host can read without a copy by anybody else. It is registered until it is
 * freed; in the first form peers may read and write it. */
int tent_allocate_memory(tent_engine_t engine, void **addr, size_t size, const char *location);
int tent_allocate_memory_ex(tent_engine_t engine, void **addr, size_t size, tent_memory_options_t *opts);
/* Waits until no transfer holds it. If that takes longer than 10 s it returns -1, and the memory is freed
 * when they end; it must not be used from the call on. */
int tent_free_memory(tent_engine_t engine, void *addr);

/* Memory of the caller, which must stay until it is unregistered. Registering the same twice counts. */
int tent_register_memory(tent_engine_t engine, void *addr, size_t size);
int tent_register_memory_with_perm(tent_engine_t engine, void *addr, size_t size, int permission);
int tent_register_memory_ex(tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts);
/* All or none. */
int tent_register_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count, int permission);
int tent_register_memory_batch_ex(tent_engine_t engine, void **addrs, size_t *sizes, size_t count,
                                  tent_memory_options_t *opts);
/* Of this address and size, or of any size if it is 0. Waits until no transfer holds it. If that takes
 * longer than 10 s it returns -1: peers have lost it, but it must not be freed before a later call
 * returned 0. */
int tent_unregister_memory(tent_engine_t engine, void *addr, size_t size);
/* `sizes` may be NULL: any. Tries all, whatever became of the others. */
int tent_unregister_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count);

/* Room for `batch_size` tasks; 0 if there is none. */
tent_batch_id_t tent_allocate_batch(tent_engine_t engine, size_t batch_size);
/* Never waits: tasks that have not ended go on by themselves. */
int tent_free_batch(tent_engine_t engine, tent_batch_id_t batch_id);
/* Adds tasks to a batch, all or none; their numbers go on from those that it has. */
int tent_submit(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count);
/* As tent_submit(). Once all of these tasks have completed, the owner of each segment that they name finds
 * the notification in its queue, once; if one of them does not complete, nobody is told. It is sent in the
 * background: an owner that is away, that was started anew, or whose queue stays full does not get it. */
int tent_submit_notif(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count,
                      const char *name, const char *message);
/* Puts a notification into the queue of the segment's owner: once, or -1. */
int tent_send_notifs(tent_engine_t engine, tent_segment_id_t handle, const char *name, const char *message);
/* All notifications that have come, oldest first, by whatever way. */
int tent_recv_notifs(tent_engine_t engine, tent_notifi_info_t *info);
void tent_free_notifs(tent_notifi_info_t *info);
/* Asks for an early end, which still has to arrive as a status. */
int tent_cancel_task(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id);
int tent_task_status(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id, tent_status_t *status);
/* `count`: how many statuses there is room for, and then how many tasks there are. -1 if they do not
 * fit. */
int tent_task_status_list(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *statuses, size_t *count);
/* Pending until all tasks have ended; then completed, or the worst of what became of them. */
int tent_overall_status(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *status);
/* Waits until all tasks of the batch have ended, and does the links' work meanwhile. 0: they have;
 * -1: not within so many microseconds. */
int tent_wait_batch(tent_engine_t engine, tent_batch_id_t batch_id, uint64_t timeout_us);

#ifdef __cplusplus
}
#endif

#endif
