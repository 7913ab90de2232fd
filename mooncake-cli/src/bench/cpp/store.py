"""Gets and puts of the C++ store, and its master's calls."""


class StoreOwner:
    """Lends memory to a master that it has started."""

    def __init__(self, segment_bytes):
        self.master, address = start_master()
        self.store = None
        if segment_bytes > 0:
            self.store = new_store(address, segment_bytes, 64 << 20)
        say(ready=True, master=address, master_pid=self.master.pid, pid=os.getpid())
        serve({}, self.end)

    def end(self):
        self.master.kill()
        self.master.wait()


class StoreClient:
    """Works on one case at a time: a walk over `count` keys, checked outside of the timed part."""

    def __init__(self, master, segment_bytes):
        self.store = new_store(master, segment_bytes, 64 << 20)
        self.registered = []
        say(ready=True, pid=os.getpid())
        serve({"case": self.case, "round": self.round, "end": self.end})

    def case(self, op, contents, value_bytes, batch, clients, prefix):
        self.op, self.batch, self.clients = op, batch, clients
        self.value_bytes, self.prefix = value_bytes, prefix
        self.contents = Contents(contents, value_bytes)
        self.count = self.contents.count
        self.source = Memory(self.count * value_bytes)
        LIBC.memmove(self.source.address, self.contents.address, self.source.size)
        self.target = Memory(self.count * value_bytes)
        for memory in (self.source, self.target):
            code = self.store.register_buffer(memory.address, memory.size)
            if code != 0:
                raise RuntimeError(f"register_buffer answers {code}")
        share = self.count // clients
        self.ranges = [(n * share, (n + 1) * share) for n in range(clients)]
        self.cursors = [start for start, _ in self.ranges]
        self.generation = 0
        # Twice, so that the owner has touched the memory that later puts go to.
        for self.generation in (0, 1):
            self.name_keys()
            for at in range(0, self.count, 32):
                self.put(at, min(at + 32, self.count))
        old = [f"{prefix}/0/{n}" for n in range(self.count)]
        self.remove(old)
        if op == "put":
            self.remove(self.keys)
            self.generation = 2
            self.name_keys()

    def name_keys(self):
        self.keys = [f"{self.prefix}/{self.generation}/{n}" for n in range(self.count)]
        # Each generation has the same values under other keys.
        size = self.value_bytes
        self.froms = [self.source.address + (n + self.generation) % self.count * size
                      for n in range(self.count)]
        self.intos = [self.target.address + n * size for n in range(self.count)]
        self.sizes = [size] * self.count

    def put(self, start, end):
        codes = self.store.batch_put_from(
            self.keys[start:end], self.froms[start:end], self.sizes[start:end])
        if any(code != 0 for code in codes):
            raise RuntimeError(f"a put answers {[c for c in codes if c != 0][0]}")

    def get(self, start, end):
        codes = self.store.batch_get_into(
            self.keys[start:end], self.intos[start:end], self.sizes[start:end])
        if any(code != self.value_bytes for code in codes):
            raise RuntimeError(f"a get answers {[c for c in codes if c != self.value_bytes][0]}")

    def remove(self, keys):
        for at in range(0, len(keys), 512):
            self.store.batch_remove(keys[at:at + 512], True)

    def check(self, start, end):
        for n in range(start, end):
            self.contents.check(n + self.generation, self.intos[n], self.keys[n])
        self.target.poison(start * self.value_bytes, (end - start) * self.value_bytes)

    def timed(self, number, budget):
        """From this thread's cursor on until its keys or the time are used up."""
        start, (_, end) = self.cursors[number], self.ranges[number]
        work = self.get if self.op == "get" else self.put
        latencies, at = [], start
        began = before = time.perf_counter()
        while at < end:
            to = min(at + self.batch, end)
            work(at, to)
            after = time.perf_counter()
            latencies.append(int((after - before) * 1e9))
            before, at = after, to
            if after - began >= budget:
                break
        return start, at, latencies

    def round(self, budget, beside):
        operations, wall, cpu, latencies = 0, 0.0, 0.0, []
        while wall < budget:
            began, cpu_began = time.perf_counter(), cpu_seconds(beside)
            done = together(self.clients, lambda n: self.timed(n, budget - wall))
            cpu += cpu_seconds(beside) - cpu_began
            wall += time.perf_counter() - began
            for number, (start, at, took) in enumerate(done):
                operations += at - start
                latencies += took
                if self.op == "put":
                    for low in range(start, at, 32):
                        self.get(low, min(low + 32, at))
                self.check(start, at)
                if self.op == "put":
                    self.remove(self.keys[start:at])
                self.cursors[number] = at
            if all(at >= end for at, (_, end) in zip(self.cursors, self.ranges)):
                self.cursors = [start for start, _ in self.ranges]
                if self.op == "put":
                    self.generation += 1
                    self.name_keys()
        return sample(operations, operations * self.value_bytes, wall, cpu, latencies)

    def end(self):
        self.remove(self.keys)
        for memory in (self.source, self.target):
            self.store.unregister_buffer(memory.address)
        self.source = self.target = self.contents = None


class MasterClient:
    """Calls of the master alone: single and batched exist, and puts of objects that are tiny."""

    VALUE = 64

    def __init__(self, master, segment_bytes):
        self.store = new_store(master, segment_bytes, 64 << 20)
        say(ready=True, pid=os.getpid())
        serve({"case": self.case, "round": self.round, "end": self.end})

    def case(self, op, batch, key_bytes, count, prefix):
        self.op, self.batch, self.count = op, batch, count
        self.prefix, self.key_bytes, self.generation = prefix, key_bytes, 0
        self.source = Memory(self.VALUE * batch)
        self.store.register_buffer(self.source.address, self.source.size)
        self.name_keys()
        if op == "exist":
            chunk = Memory(self.VALUE * 128)
            self.store.register_buffer(chunk.address, chunk.size)
            for at in range(0, count, 128):
                keys = self.keys[at:at + 128]
                froms = [chunk.address + n * self.VALUE for n in range(len(keys))]
                codes = self.store.batch_put_from(keys, froms, [self.VALUE] * len(keys))
                if any(codes):
                    raise RuntimeError(f"a put answers {codes}")
            self.store.unregister_buffer(chunk.address)
        self.cursor = 0

    def name_keys(self):
        def key(n):
            name = f"{self.prefix}/{self.generation}/{n}/"
            return name + "k" * (self.key_bytes - len(name))
        self.keys = [key(n) for n in range(self.count)]

    def call(self, keys):
        store, batch = self.store, self.batch
        if self.op != "put":
            found = [store.is_exist(keys[0])] if batch == 1 else store.batch_is_exist(keys)
            wanted = int(self.op == "exist")
            return all(one == wanted for one in found)
        if batch == 1:
            return store.put_from(keys[0], self.source.address, self.VALUE) == 0
        froms = [self.source.address + n * self.VALUE for n in range(len(keys))]
        return not any(store.batch_put_from(keys, froms, [self.VALUE] * len(keys)))

    def round(self, budget, beside):
        operations, wall, cpu, latencies = 0, 0.0, 0.0, []
        while wall < budget:
            start = at = self.cursor
            cpu_began = cpu_seconds(beside)
            began = before = time.perf_counter()
            while at < self.count and before - began < budget - wall:
                to = min(at + self.batch, self.count)
                if not self.call(self.keys[at:to]):
                    raise RuntimeError(f"{self.op} fails")
                after = time.perf_counter()
                latencies.append(int((after - before) * 1e9))
                before, at = after, to
            wall += before - began
            cpu += cpu_seconds(beside) - cpu_began
            operations += at - start
            self.cursor = at
            if self.op == "put":
                for low in range(start, at, 512):
                    self.store.batch_remove(self.keys[low:min(low + 512, at)], True)
            if at >= self.count:
                self.cursor = 0
                self.generation += self.op == "put"
                if self.op == "put":
                    self.name_keys()
        return sample(operations, 0, wall, cpu, latencies)

    def end(self):
        self.store.batch_remove(self.keys, True)
        self.store.unregister_buffer(self.source.address)
