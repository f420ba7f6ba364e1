"""docs/models/training.md a second time: exact fractions, no code shared with an engine, as plain as can be.

The state is what each worker computes, what the network is doing, which buckets are ready and which have arrived. At
every instant first everything that ends is taken in, then compute starts what it can (an op of zero length ends at
once), and then an idle network takes the most urgent bucket that is ready on all workers.
"""

from fractions import Fraction

PPM = 10**6
MASK64, MASK128 = 2**64 - 1, 2**128 - 1


class Stream:
    """A named stream of random numbers: PCG XSL RR 128/64 (O'Neill 2014), bounded as Lemire (2019) does."""

    def __init__(self, seed, name):
        chosen = 0xCBF29CE484222325
        for byte in name.encode():
            chosen = (chosen ^ byte) * 0x100000001B3 & MASK64
        self.increment = chosen << 1 | 1
        self.state = seed + self.increment
        self.step()

    def step(self):
        self.state = (self.state * 0x2360ED051FC65DA44385DF649FCCF645 + self.increment) & MASK128

    def below(self, bound):
        while True:
            self.step()
            turn, folded = self.state >> 122, (self.state >> 64 ^ self.state) & MASK64
            product = (folded >> turn | folded << (64 - turn) & MASK64) * bound
            if product & MASK64 >= 2**64 % bound:
                return product >> 64


def factors(spec, count):
    """Return factors[worker][iteration], millionths, of the only job, as docs/models/compute.md says."""
    job, seed = spec["jobs"][0], spec["run"]["seed"]
    pace, name, workers = job["compute"], job["name"], len(job["hosts"])
    straggler = pace["straggler"]
    if not pace["noise_ppm"] and straggler is None:
        return [[PPM] * count]

    def rounded(value, ppm):
        return (value * ppm * 2 + PPM) // (2 * PPM)

    width = rounded(pace["noise_ppm"], 1_732_051)
    drawn = []
    for worker in range(workers):
        stream = Stream(seed, f"compute/{name}/{worker}")
        drawn.append([PPM - width + stream.below(2 * width + 1) for _ in range(count)])
    if straggler is not None:
        hits, choice = Stream(seed, f"straggler/{name}"), Stream(seed, f"straggler/{name}/worker")
        for iteration in range(count):
            is_slow, chosen = hits.below(PPM) < straggler["probability_ppm"], choice.below(workers)
            slow = chosen if straggler["worker"] is None else straggler["worker"]
            if is_slow:
                drawn[slow][iteration] = rounded(drawn[slow][iteration], straggler["factor_ppm"])
    return drawn


def fuse(sizes, cap):
    """Group layers from the output side down; return lists of layers."""
    buckets, size = [], 0
    for layer in reversed(range(len(sizes))):
        if sizes[layer] == 0:
            continue
        if buckets and size + sizes[layer] <= cap:
            buckets[-1].append(layer)
            size += sizes[layer]
        else:
            buckets.append([layer])
            size = sizes[layer]
    return buckets


def simulate(spec, ranks_of_iteration, iterations):
    """Simulate the only job of a core spec.

    Args:
        spec: what the core is given.
        ranks_of_iteration: function of (iteration, buckets) giving the rank of every bucket; iteration 0 is the
            warm-up.
        iterations: measured iterations.

    Returns:
        (starts, transfers): for each worker (one, if all are alike) the start of each forward pass from the first
        measured iteration on, one more than `iterations`; and transfers[iteration][bucket] = {"ready", "start", "end",
        "needed"} for the measured ones.
        Fractions of picoseconds.
    """
    job = Job(spec, ranks_of_iteration, iterations)
    while not job.is_done():
        job.compute()
        if not job.is_done():
            job.send()
            job.advance()
    count = range(len(job.buckets))
    measured = [[job.transfers[i, bucket] for bucket in count] for i in range(1, iterations + 1)]
    return [worker.starts for worker in job.workers], measured


class Job:
    """The only job of a spec, at one time of its simulation."""

    def __init__(self, spec, ranks_of_iteration, iterations):
        job, cluster = spec["jobs"][0], spec["cluster"]
        self.schedule, self.iterations, self.ranks_of_iteration = job["schedule"], iterations, ranks_of_iteration
        self.host_count = len(job["hosts"])
        self.slowdown = Fraction(job["compute"]["overlap_slowdown_ppm"], 10**6)
        self.rate = cluster["link"]["rate_bps"] * cluster["link"]["efficiency_ppm"] // 10**6
        # From a host to the switch, and from there to the next host.
        self.delay = 2 * (cluster["link"]["delay_ps"] + cluster["host_latency_ps"])
        sizes = [layer["parameter_bytes"] for layer in job["layers"]]
        self.buckets = fuse(sizes, self.schedule["fusion"]["bytes"]) if self.host_count > 1 else []
        self.bucket_bytes = [sum(sizes[layer] for layer in bucket) for bucket in self.buckets]
        self.ops = ops_of(job["layers"], self.schedule["barrier"])
        self.now = Fraction(job["start_ps"])
        self.workers = [Worker(pace) for pace in factors(spec, iterations + 3)]
        self.on_network = None  # [iteration and bucket, time left]
        self.free_at = self.now  # when the syncer lets the next chunk go
        self.waiting = {}  # (iteration, bucket) -> (key, chunks left)
        self.computed = {}  # (iteration, bucket) -> workers that have it
        self.arrived = {(-1, bucket) for bucket in range(len(self.buckets))}
        self.transfers = {}
        for worker in self.workers:
            self.reach(worker)

    def is_done(self):
        return all(worker.is_done for worker in self.workers)

    def chunks(self, size):
        limit = self.schedule["chunk_bytes"] or size
        return [min(limit, size - sent) for sent in range(0, size, limit)]

    def occupancy(self, size):
        steps = 2 * (self.host_count - 1)
        wire = Fraction(size * 8 * 10**12, self.host_count * self.rate)
        return self.schedule["overhead_ps"] + steps * (wire + self.delay)

    def awaited(self, op):
        kind, layer, _ = op
        if kind == "barrier":
            return range(len(self.buckets))
        if kind == "update" and not self.schedule["barrier"]:
            return [bucket for bucket, members in enumerate(self.buckets) if layer in members]
        return []

    def first_used(self, op):
        kind, layer, _ = op
        return [bucket for bucket in self.awaited(op) if kind == "barrier" or layer == min(self.buckets[bucket])]

    def reach(self, worker):
        """Note that a worker needs the transfers of its next op from now on."""
        for bucket in self.first_used(self.ops[worker.position]):
            if worker.iteration > 0:
                self.transfers[worker.iteration - 1, bucket]["needed"] = self.now

    def may_go(self, iteration, bucket):
        """Whether a complete bucket may be sent: in turn, not before all of smaller rank are complete."""
        if not self.schedule["order"].get("in_turn", False):
            return True
        ranks = self.ranks_of_iteration(iteration, self.buckets)
        smaller = [other for other in range(len(self.buckets)) if ranks[other] < ranks[bucket]]
        return all(self.computed.get((iteration, other), 0) == len(self.workers) for other in smaller)

    def compute(self):
        """Let every worker do all it can do now."""
        for worker in self.workers:
            while self.go_on(worker):
                pass

    def go_on(self, worker):
        """End the op of a worker if it has no work left, begin the next if it can, and return whether it began one."""
        if worker.running and worker.running[1] == 0:
            self.end(worker)
        if worker.running or worker.is_done:
            return False
        op = self.ops[worker.position]
        if any((worker.iteration - 1, bucket) not in self.arrived for bucket in self.awaited(op)):
            return False
        if op[0] == "forward" and op[1] == 0 and worker.iteration > 0:
            worker.starts.append(self.now)
        if op[0] == "backward" and worker.iteration == self.iterations + 1:
            worker.is_done = True
            return False
        worker.running = [op, Fraction((op[2] * worker.pace[worker.iteration] * 2 + PPM) // (2 * PPM))]
        return True

    def end(self, worker):
        """End the op of a worker; buckets whose gradients all workers have are ready."""
        kind, layer, _ = worker.running[0]
        for bucket, members in enumerate(self.buckets):
            if kind == "backward" and layer == min(members):
                key = worker.iteration, bucket
                self.computed[key] = self.computed.get(key, 0) + 1
                self.transfers.setdefault(key, {})
                if self.computed[key] == len(self.workers):
                    rank = self.ranks_of_iteration(worker.iteration, self.buckets)[bucket]
                    self.transfers[key]["ready"] = self.now
                    self.waiting[key] = ((rank, self.now, bucket), self.chunks(self.bucket_bytes[bucket]))
        worker.running = None
        worker.position += 1
        if worker.position == len(self.ops):
            worker.iteration, worker.position = worker.iteration + 1, 0
        self.reach(worker)

    def sendable(self):
        return [key for key in self.waiting if self.may_go(*key)]

    def send(self):
        """Send the most urgent chunk if the network is free."""
        sendable = self.sendable()
        if self.on_network is None and sendable and self.now >= self.free_at:
            chosen = min(sendable, key=lambda bucket: self.waiting[bucket][0])
            size = self.waiting[chosen][1].pop(0)
            # Its first byte, behind what each transfer costs by itself.
            self.transfers[chosen].setdefault("start", self.now + self.schedule["overhead_ps"])
            self.on_network = [chosen, self.occupancy(size)]

    def advance(self):
        """Go to the next instant at which an op or a chunk ends or the network is free."""
        running = [worker for worker in self.workers if worker.running]
        speed = 1 / self.slowdown if self.on_network else Fraction(1)
        steps = [worker.running[1] / speed for worker in running]
        if self.on_network:
            steps.append(self.on_network[1])
        elif self.free_at > self.now and self.sendable():
            steps.append(self.free_at - self.now)
        step = min(steps)
        self.now += step
        for worker in running:
            worker.running[1] -= step * speed
        if self.on_network:
            self.on_network[1] -= step
            if self.on_network[1] == 0:
                self.receive(self.on_network[0])

    def receive(self, bucket):
        """End a chunk, and its bucket if that was the last."""
        if not self.waiting[bucket][1]:
            del self.waiting[bucket]
            self.transfers[bucket]["end"] = self.now
            self.arrived.add(bucket)
        self.on_network = None
        self.free_at = self.now + self.schedule["sync_ps"]


def ops_of(layers, barrier):
    """Return the ops of an iteration in their order, as (kind, layer, time)."""
    update = [("update", i, layer["update_ps"]) for i, layer in enumerate(layers)]
    forward = [("forward", i, layer["forward_ps"]) for i, layer in enumerate(layers)]
    backward = [("backward", i, layer["backward_ps"]) for i, layer in reversed(list(enumerate(layers)))]
    if barrier:
        return [("barrier", 0, 0), *update, *forward, *backward]
    return [op for pair in zip(update, forward, strict=True) for op in pair] + backward


class Worker:
    """What one worker, or all alike, is doing."""

    def __init__(self, pace):
        self.pace = pace
        self.iteration, self.position = 0, 0
        self.running = None  # [op, work left]
        self.starts = []
        self.is_done = False
