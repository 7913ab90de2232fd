/* Two engines in one process: one offers a megabyte, the other reads it, changes it and writes it back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent.h"

#define SIZE (1u << 20)

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "%s: %s\n", what, tent_last_error());
        exit(1);
    }
}

static void move_all(tent_engine_t engine, tent_segment_id_t target, int opcode, void *local, uint64_t remote) {
    tent_request_t requests[2];
    tent_batch_id_t batch = tent_allocate_batch(engine, 2);
    tent_status_t status;
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < 2; i++) {
        requests[i].opcode = opcode;
        requests[i].source = (char *)local + i * (SIZE / 2);
        requests[i].target_id = target;
        requests[i].target_offset = remote + i * (SIZE / 2);
        requests[i].length = SIZE / 2;
    }
    check(batch == 0, "tent_allocate_batch");
    check(tent_submit(engine, batch, requests, 2), "tent_submit");
    check(tent_wait_batch(engine, batch, 10 * 1000 * 1000), "tent_wait_batch");
    check(tent_overall_status(engine, batch, &status), "tent_overall_status");
    if (status.status != STATUS_COMPLETED || status.transferred_bytes != SIZE) {
        fprintf(stderr, "status %d after %llu bytes\n", status.status, (unsigned long long)status.transferred_bytes);
        exit(1);
    }
    check(tent_free_batch(engine, batch), "tent_free_batch");
}

int main(void) {
    tent_engine_t owner = tent_create_engine(), reader = tent_create_engine();
    tent_segment_id_t segment;
    tent_segment_info_t info;
    char name[128];
    void *offered;
    unsigned char *local = malloc(SIZE);
    check(!owner || !reader || !local, "tent_create_engine");

    check(tent_allocate_memory(owner, &offered, SIZE, "cpu"), "tent_allocate_memory");
    for (size_t i = 0; i < SIZE; i++)
        ((unsigned char *)offered)[i] = (unsigned char)(i % 251);
    check(tent_register_memory_with_perm(reader, local, SIZE, PERM_LOCAL_READ_WRITE), "tent_register_memory_with_perm");

    check(tent_segment_name(owner, name, sizeof name), "tent_segment_name");
    check(tent_open_segment(reader, &segment, name), "tent_open_segment");
    check(tent_get_segment_info(reader, segment, &info), "tent_get_segment_info");
    if (info.type != TYPE_MEMORY || info.num_buffers != 1 || info.buffers[0].length != SIZE) {
        fprintf(stderr, "%d buffers of the owner\n", info.num_buffers);
        return 1;
    }

    move_all(reader, segment, OPCODE_READ, local, info.buffers[0].base);
    for (size_t i = 0; i < SIZE; i++) {
        if (local[i] != i % 251) {
            fprintf(stderr, "byte %zu is %d\n", i, local[i]);
            return 1;
        }
        local[i] ^= 255;
    }
    move_all(reader, segment, OPCODE_WRITE, local, info.buffers[0].base);
    if (memcmp(local, offered, SIZE) != 0) {
        fprintf(stderr, "other bytes were written\n");
        return 1;
    }

    tent_free_segment_info(&info);
    check(tent_close_segment(reader, segment), "tent_close_segment");
    check(tent_unregister_memory(reader, local, SIZE), "tent_unregister_memory");
    check(tent_free_memory(owner, offered), "tent_free_memory");
    tent_destroy_engine(reader);
    tent_destroy_engine(owner);
    free(local);
    puts("a megabyte went there and back, every byte of it right");
    return 0;
}
