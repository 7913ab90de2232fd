#define _POSIX_C_SOURCE 200809L
/* Prints how the structures lie, and checks that mistakes are refused in words. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tent.h"

static int failures;

static void refused(int code, const char *said) {
    if (code != -1 || strstr(tent_last_error(), said) == NULL) {
        fprintf(stderr, "%d, \"%s\" instead of \"%s\"\n", code, tent_last_error(), said);
        failures++;
    }
}

static void done(int code) {
    if (code != 0 || tent_last_error()[0] != 0) {
        fprintf(stderr, "%d: %s\n", code, tent_last_error());
        failures++;
    }
}

int main(void) {
    static char memory[4096], other[64];
    tent_engine_t engine;
    tent_segment_id_t segment = 7;
    tent_batch_id_t batch;
    tent_status_t status, two[2];
    tent_memory_options_t options;
    tent_request_t request;
    void *addrs[2] = {memory, NULL};
    size_t sizes[2] = {64, 64}, count = 0;
    char name[64];
    tent_notifi_info_t info;
    struct timespec pause = {0, 10 * 1000 * 1000};
    int i, seen, tries = 0;

    printf("request %zu %zu %zu %zu %zu\n", sizeof request, offsetof(tent_request_t, source),
           offsetof(tent_request_t, length), offsetof(tent_request_t, priority),
           offsetof(tent_request_t, transport_hint));
    printf("status %zu %zu\n", sizeof status, offsetof(tent_status_t, transferred_bytes));
    printf("buffer %zu %zu\n", sizeof(tent_buffer_info_t), offsetof(tent_buffer_info_t, location));
    printf("segment %zu %zu %zu\n", sizeof(tent_segment_info_t), offsetof(tent_segment_info_t, num_buffers),
           offsetof(tent_segment_info_t, buffers));
    printf("record %zu %zu %zu\n", sizeof(tent_notifi_record_t), offsetof(tent_notifi_record_t, name),
           offsetof(tent_notifi_record_t, msg));
    printf("info %zu %zu\n", sizeof(tent_notifi_info_t), offsetof(tent_notifi_info_t, records));
    printf("options %zu %zu %zu %zu %zu %zu\n", sizeof options, offsetof(tent_memory_options_t, permission),
           offsetof(tent_memory_options_t, transport_type), offsetof(tent_memory_options_t, shm_path),
           offsetof(tent_memory_options_t, shm_offset), offsetof(tent_memory_options_t, internal));

    tent_set_config("metadata_type", "etcd");
    if (tent_create_engine() != NULL) {
        fprintf(stderr, "an engine without a registry that it was told of\n");
        return 1;
    }
    refused(-1, "metadata_type etcd");
    tent_set_config("metadata_type", "p2p");
    tent_load_config_from_file("/nowhere.json");
    if (tent_create_engine() != NULL) {
        fprintf(stderr, "an engine without its configuration\n");
        return 1;
    }
    refused(-1, "/nowhere.json");
    tent_load_config_from_file(NULL);
    engine = tent_create_engine();
    if (engine == NULL || !tent_available(engine) || tent_available(NULL)) {
        fprintf(stderr, "no engine: %s\n", tent_last_error());
        return 1;
    }

    refused(tent_segment_name(NULL, name, sizeof name), "the engine is NULL");
    refused(tent_segment_name(engine, name, 3), "places");
    done(tent_segment_name(engine, name, sizeof name));
    refused(tent_open_segment(engine, &segment, NULL), "the name is NULL");
    refused(tent_open_segment(engine, &segment, "127.0.0.1:1"), "127.0.0.1:1");
    done(tent_open_segment(engine, &segment, name));
    if (segment != LOCAL_SEGMENT_ID)
        failures++;
    refused(tent_close_segment(engine, 99), "no segment 99");

    refused(tent_register_memory(engine, NULL, 64), "the address is NULL");
    refused(tent_register_memory(engine, memory, 0), "at least one byte");
    refused(tent_register_memory_with_perm(engine, memory, 64, 9), "permission 9");
    /* All or none: what came before the mistake is not registered any more. */
    refused(tent_register_memory_batch(engine, addrs, sizes, 2, PERM_GLOBAL_READ_WRITE), "entry 1: the address");
    refused(tent_unregister_memory(engine, memory, 64), "nothing is registered");
    memset(&options, 0, sizeof options);
    strcpy(options.shm_path, "/name");
    refused(tent_register_memory_ex(engine, memory, 64, &options), "shm_path");
    options.shm_path[0] = 0;
    options.transport_type = TRANSPORT_RDMA;
    refused(tent_register_memory_ex(engine, memory, 64, &options), "transport_type");
    done(tent_register_memory(engine, memory, sizeof memory));
    done(tent_register_memory(engine, memory, sizeof memory));
    refused(tent_register_memory_with_perm(engine, memory, sizeof memory, PERM_GLOBAL_READ_ONLY), "something else");
    refused(tent_free_memory(engine, memory), "unregister it");

    refused(tent_submit(engine, 99, NULL, 0), "no batch 99");
    batch = tent_allocate_batch(engine, 2);
    done(tent_overall_status(engine, batch, &status));
    if (status.status != STATUS_WAITING)
        failures++;
    refused(tent_submit(engine, batch, NULL, 1), "the requests is NULL");
    memset(&request, 0, sizeof request);
    request.source = other;
    request.length = 64;
    request.target_offset = (uint64_t)(uintptr_t)memory;
    refused(tent_submit(engine, batch, &request, 1), "not in registered memory");
    request.source = memory + 128;
    request.opcode = 5;
    refused(tent_submit(engine, batch, &request, 1), "opcode 5");
    request.opcode = OPCODE_WRITE;
    request.transport_hint = 77;
    refused(tent_submit(engine, batch, &request, 1), "transport 77");
    request.transport_hint = TRANSPORT_UNSPEC;
    request.priority = 3;
    refused(tent_submit(engine, batch, &request, 1), "priority 3");
    request.priority = PRIORITY_LOW;
    memset(memory + 128, 'x', 64);
    done(tent_submit(engine, batch, &request, 1));
    done(tent_wait_batch(engine, batch, 5000000));
    if (memcmp(memory, memory + 128, 64) != 0)
        failures++;
    refused(tent_task_status(engine, batch, 1, &status), "no task 1");
    refused(tent_task_status_list(engine, batch, two, &count), "0 places of 1");
    done(tent_task_status_list(engine, batch, two, &count));
    if (count != 1 || two[0].status != STATUS_COMPLETED || two[0].transferred_bytes != 64)
        failures++;
    refused(tent_send_notifs(engine, LOCAL_SEGMENT_ID, "name", NULL), "the message is NULL");
    memset(memory + 256, 'n', 300);
    refused(tent_send_notifs(engine, LOCAL_SEGMENT_ID, memory + 256, ""), "255 at most");
    done(tent_recv_notifs(engine, &info));
    if (info.num_records != 0 || info.records != NULL)
        failures++;
    done(tent_send_notifs(engine, LOCAL_SEGMENT_ID, "first", "a"));
    done(tent_submit_notif(engine, batch, &request, 1, "second", "b"));
    done(tent_wait_batch(engine, batch, 5000000));
    for (seen = 0; seen < 2 && tries < 500; tries++) {
        done(tent_recv_notifs(engine, &info));
        for (i = 0; i < info.num_records; i++, seen++)
            if (strcmp(info.records[i].name, seen == 0 ? "first" : "second") != 0 ||
                strcmp(info.records[i].msg, seen == 0 ? "a" : "b") != 0 || info.records[i].handle != LOCAL_SEGMENT_ID)
                failures++;
        tent_free_notifs(&info);
        nanosleep(&pause, NULL);
    }
    if (seen != 2) {
        fprintf(stderr, "%d notifications of 2\n", seen);
        failures++;
    }
    done(tent_free_batch(engine, batch));
    refused(tent_free_batch(engine, batch), "no batch");

    done(tent_unregister_memory(engine, memory, 0));
    done(tent_unregister_memory(engine, memory, sizeof memory));
    refused(tent_unregister_memory(engine, memory, sizeof memory), "nothing is registered");
    tent_destroy_engine(engine);
    return failures != 0;
}
