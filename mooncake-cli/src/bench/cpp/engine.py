"""Reads and writes of the C++ transfer engine."""


def new_engine():
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    code = engine.initialize(LOCAL, PEER_TO_PEER, "tcp", "")
    if code != 0:
        raise RuntimeError(f"initialize answers {code}")
    return engine


def registered(engine, size):
    memory = Memory(size)
    code = engine.register_memory(memory.address, size)
    if code != 0:
        raise RuntimeError(f"register_memory answers {code}")
    return memory


class EngineTarget:
    """Offers memory with the contents of a file."""

    def __init__(self, contents, block_bytes):
        self.contents = Contents(contents, block_bytes)
        engine = new_engine()
        size = self.contents.count * block_bytes
        self.memory = registered(engine, size)
        LIBC.memmove(self.memory.address, self.contents.address, size)
        say(ready=True, pid=os.getpid(), segment=f"{LOCAL}:{engine.get_rpc_port()}",
            address=self.memory.address)
        serve({"check": self.check, "poison": self.poison})

    def check(self):
        size = self.contents.value_bytes
        for n in range(self.contents.count):
            self.contents.check(n, self.memory.address + n * size, f"block {n}")

    def poison(self):
        self.memory.poison(0, self.memory.size)


class EngineInitiator:
    """Walks over the target's memory, in batches, from one or more threads."""

    def __init__(self, contents, segment, address, op, block_bytes, batch, threads):
        self.contents = Contents(contents, block_bytes)
        self.engine = new_engine()
        self.segment, self.op, self.batch, self.threads = segment, op, batch, threads
        size = self.contents.count * block_bytes
        self.memory = registered(self.engine, size)
        if op == "write":
            LIBC.memmove(self.memory.address, self.contents.address, size)
        share = self.contents.count // threads
        self.ranges = [(n * share, (n + 1) * share) for n in range(threads)]
        self.cursors = [start for start, _ in self.ranges]
        self.ours = [self.memory.address + n * block_bytes for n in range(self.contents.count)]
        self.theirs = [address + n * block_bytes for n in range(self.contents.count)]
        self.sizes = [block_bytes] * self.contents.count
        say(ready=True, pid=os.getpid())
        serve({"round": self.round, "walk": self.walk})

    def walk(self):
        """Submits everything once."""
        for at in range(0, self.contents.count, self.batch):
            self.submit(at, min(at + self.batch, self.contents.count))

    def submit(self, start, end):
        call = (self.engine.batch_transfer_sync_read if self.op == "read"
                else self.engine.batch_transfer_sync_write)
        code = call(self.segment, self.ours[start:end], self.theirs[start:end],
                    self.sizes[start:end])
        if code != 0:
            raise RuntimeError(f"a transfer answers {code}")

    def timed(self, number, budget):
        start, (_, end) = self.cursors[number], self.ranges[number]
        latencies, at = [], start
        began = before = time.perf_counter()
        while at < end:
            to = min(at + self.batch, end)
            self.submit(at, to)
            after = time.perf_counter()
            latencies.append(int((after - before) * 1e9))
            before, at = after, to
            if after - began >= budget:
                break
        return start, at, latencies

    def round(self, budget, beside):
        size = self.contents.value_bytes
        operations, wall, cpu, latencies = 0, 0.0, 0.0, []
        while wall < budget:
            began, cpu_began = time.perf_counter(), cpu_seconds(beside)
            done = together(self.threads, lambda n: self.timed(n, budget - wall))
            cpu += cpu_seconds(beside) - cpu_began
            wall += time.perf_counter() - began
            for number, (start, at, took) in enumerate(done):
                operations += at - start
                latencies += took
                if self.op == "read":
                    for n in range(start, at):
                        self.contents.check(n, self.ours[n], f"block {n}")
                    self.memory.poison(start * size, (at - start) * size)
                self.cursors[number] = at
            if all(at >= end for at, (_, end) in zip(self.cursors, self.ranges)):
                self.cursors = [start for start, _ in self.ranges]
        return sample(operations, operations * size, wall, cpu, latencies)
