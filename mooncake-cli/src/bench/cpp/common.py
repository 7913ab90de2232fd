"""What all parts of the C++ side share: the line protocol, processes, memory and round keeping.

The program reads one JSON object a line and answers each with one JSON object a line; the first
line that it writes says that it is ready. It ends when its standard input does.
"""

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time

# Never RDMA, whatever the machine has; read when the libraries are loaded.
os.environ.setdefault("MC_FORCE_TCP", "1")
os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
os.environ.setdefault("GLOG_minloglevel", "2")

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
LIBC.memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
LIBC.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
PR_SET_PDEATHSIG = 1
POISON = 0xEE
LOCAL = "127.0.0.1"
PEER_TO_PEER = "P2PHANDSHAKE"


def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def serve(handlers, at_end=lambda: None):
    """Answers lines until there are no more; what a handler raises is the answer's `error`."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            say(**(handlers[asked.pop("do")](**asked) or {}))
        except Exception as error:  # whoever asked decides what it means
            say(error=f"{type(error).__name__}: {error}")
    at_end()
    # The libraries' threads need not be ended one by one.
    os._exit(0)


def free_port():
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return probe.getsockname()[1]


def start_master(flags=()):
    """Starts the wheel's master as a child that dies with this process: (process, address)."""
    import mooncake.cli

    folder = os.path.dirname(os.path.abspath(mooncake.cli.__file__))
    port = free_port()
    master = subprocess.Popen(
        [sys.executable, "-c", "import mooncake.cli, sys; mooncake.cli.main()",
         f"--rpc_port={port}", f"--rpc_address={LOCAL}",
         f"--metrics_port={free_port()}", f"--metrics_host={LOCAL}",
         f"--log_dir={os.environ.get('TMPDIR', '/tmp')}", "--logtostderr=1", "--minloglevel=2",
         *flags],
        cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up and master.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((LOCAL, port)) == 0:
                return master, f"{LOCAL}:{port}"
        time.sleep(0.01)
    raise RuntimeError("mooncake_master does not listen")


def new_store(master, segment_bytes, local_bytes):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(LOCAL, PEER_TO_PEER, segment_bytes, local_bytes, "tcp", "", master)
    if code != 0:
        raise RuntimeError(f"setup of a store client answers {code}")
    return store


class Memory:
    """An anonymous mapping that stays where it is; all its pages are touched."""

    def __init__(self, size):
        self.size = size
        self.map = mmap.mmap(-1, size)
        self._anchor = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._anchor)
        self.poison(0, size)

    def poison(self, offset, length):
        LIBC.memset(self.address + offset, POISON, length)


class Contents:
    """The values as a file that whoever measures has written."""

    def __init__(self, path, value_bytes):
        with open(path, "rb") as file:
            # Private: ctypes wants a writable mapping, nobody writes.
            self.map = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE,
                                 mmap.PROT_READ | mmap.PROT_WRITE)
        self.value_bytes = value_bytes
        self.count = len(self.map) // value_bytes
        self._anchor = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._anchor)

    def of(self, number):
        return self.address + (number % self.count) * self.value_bytes

    def check(self, number, address, what):
        if LIBC.memcmp(self.of(number), address, self.value_bytes) != 0:
            raise RuntimeError(f"{what} has a wrong byte")


TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(beside):
    """Processor time of this process and of those beside it, so far."""
    total = time.process_time()
    for pid in beside:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rsplit(") ", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) * TICK
    return total


def sample(operations, bytes_moved, wall, cpu, latencies):
    return {"operations": operations, "bytes": bytes_moved, "wall_ns": int(wall * 1e9),
            "cpu_ns": int(cpu * 1e9), "latencies_ns": latencies}


def together(threads, work):
    """Runs `work(number)` in so many threads, the first of them this one; their results."""
    results = [None] * threads
    failures = []

    def one(number):
        try:
            results[number] = work(number)
        except Exception as error:
            failures.append(error)

    others = [threading.Thread(target=one, args=(n,)) for n in range(1, threads)]
    for other in others:
        other.start()
    one(0)
    for other in others:
        other.join()
    if failures:
        raise failures[0]
    return results
