"""Replays a trace against the C++ store, as `mooncake bench replay` does against ours."""


class Replay:
    """Gets the longest prefix of each request's blocks that the store has, and puts the rest."""

    def __init__(self, master, block_bytes, batch):
        self.store = new_store(master, 0, 64 << 20)
        self.block_bytes, self.batch = block_bytes, batch
        self.source, self.target = Memory(block_bytes * batch), Memory(block_bytes * batch)
        for memory in (self.source, self.target):
            self.store.register_buffer(memory.address, memory.size)
        # A block is noise with the block's id in front of each page.
        self.noise = os.urandom(block_bytes)
        self.expected = Memory(block_bytes)
        say(ready=True, pid=os.getpid())
        serve({"replay": self.replay})

    def places(self, memory, count):
        return [memory.address + n * self.block_bytes for n in range(count)]

    def marks(self):
        return range(0, max(self.block_bytes - 7, 1), 4096)

    def fill(self, address, block):
        LIBC.memmove(address, self.noise, self.block_bytes)
        word = block.to_bytes(8, "little")[:self.block_bytes]
        for at in self.marks():
            LIBC.memmove(address + at, word, len(word))

    def is_block(self, address, block):
        self.fill(self.expected.address, block)
        return LIBC.memcmp(address, self.expected.address, self.block_bytes) == 0

    def longest_prefix(self, keys):
        present = 0
        for found in self.store.batch_is_exist(keys):
            if found < 0:
                raise RuntimeError(f"exist answers {found}")
            if found == 0:
                break
            present += 1
        return present

    def get(self, blocks, totals):
        keys = [str(block) for block in blocks]
        places = self.places(self.target, len(blocks))
        sizes = [self.block_bytes] * len(blocks)
        codes = self.store.batch_get_into(keys, places, sizes)
        read = []
        for block, place, code in zip(blocks, places, codes):
            good = code == self.block_bytes
            if good and not self.is_block(place, block):
                totals["byte_errors"] += 1
                good = False
            elif code < 0 and code != -704:
                totals["errors"] += 1
            totals["bytes_get"] += self.block_bytes * good
            read.append(good)
        return read

    def put(self, blocks, totals):
        places = self.places(self.source, len(blocks))
        for block, place in zip(blocks, places):
            self.fill(place, block)
        sizes = [self.block_bytes] * len(blocks)
        codes = self.store.batch_put_from([str(block) for block in blocks], places, sizes)
        for code in codes:
            totals["errors"] += code != 0
            totals["bytes_put"] += self.block_bytes * (code == 0)

    def replay(self, trace, requests):
        totals = {"requests": 0, "blocks_total": 0, "blocks_hit": 0, "byte_errors": 0,
                  "errors": 0, "bytes_get": 0, "bytes_put": 0}
        with open(trace, encoding="utf-8") as lines:
            work = [json.loads(line)["hash_ids"] for line in lines if line.strip()]
        work = work[:requests]
        began = time.perf_counter()
        for blocks in work:
            totals["requests"] += 1
            totals["blocks_total"] += len(blocks)
            present = self.longest_prefix([str(block) for block in blocks])
            prefix, rest = blocks[:present], blocks[present:]
            read = [False] * present
            for start in reversed(range(0, present, self.batch)):
                end = min(present, start + self.batch)
                read[start:end] = self.get(prefix[start:end], totals)
            hit = read.index(False) if False in read else present
            totals["blocks_hit"] += hit
            lost = [block for block, good in zip(prefix, read) if not good]
            missing = list(dict.fromkeys(lost + rest))
            end = len(missing)
            while end > 0:
                start = max(end - self.batch, 0)
                self.put(missing[start:end], totals)
                end = start
        totals["seconds"] = time.perf_counter() - began
        return totals
