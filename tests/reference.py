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
    job, cluster = spec["jobs"][0], spec["cluster"]
    layers, schedule = job["layers"], job["schedule"]
    workers = len(job["hosts"])
    barrier = schedule["barrier"]
    in_turn = schedule["order"].get("in_turn", False)
    slowdown = Fraction(job["compute"]["overlap_slowdown_ppm"], 10**6)
    rate = cluster["link"]["rate_bps"] * cluster["link"]["efficiency_ppm"] // 10**6
    # From a host to the switch, and from there to the next host.
    delay = 2 * (cluster["link"]["delay_ps"] + cluster["host_latency_ps"])
    count = len(layers)
    sizes = [layer["parameter_bytes"] for layer in layers]
    buckets = fuse(sizes, schedule["fusion"]["bytes"]) if workers > 1 else []
    bucket_bytes = [sum(sizes[layer] for layer in bucket) for bucket in buckets]

    def chunks(size):
        limit = schedule["chunk_bytes"] or size
        return [min(limit, size - sent) for sent in range(0, size, limit)]

    def occupancy(size):
        steps = 2 * (workers - 1)
        return schedule["overhead_ps"] + steps * (Fraction(size * 8 * 10**12, workers * rate) + delay)

    update = [("update", i, layers[i]["update_ps"]) for i in range(count)]
    forward = [("forward", i, layers[i]["forward_ps"]) for i in range(count)]
    backward = [("backward", i, layers[i]["backward_ps"]) for i in reversed(range(count))]
    if barrier:
        ops = [("barrier", 0, 0), *update, *forward, *backward]
    else:
        ops = [op for pair in zip(update, forward, strict=True) for op in pair] + backward

    now = Fraction(job["start_ps"])
    paces = factors(spec, iterations + 3)
    streams = [Worker(pace) for pace in paces]
    on_network = None  # [iteration and bucket, time left]
    free_at = now  # when the syncer lets the next chunk go
    waiting = {}  # (iteration, bucket) -> (key, chunks left)
    computed = {}  # (iteration, bucket) -> workers that have it
    arrived = {(-1, bucket) for bucket in range(len(buckets))}
    transfers = {}

    def awaited(op):
        kind, layer, _ = op
        if kind == "barrier":
            return range(len(buckets))
        if kind == "update" and not barrier:
            return [bucket for bucket, members in enumerate(buckets) if layer in members]
        return []

    def first_used(op):
        kind, layer, _ = op
        return [b for b in awaited(op) if kind == "barrier" or layer == min(buckets[b])]

    def reached(stream):
        for bucket in first_used(ops[stream.position]):
            if stream.iteration > 0:
                transfers[stream.iteration - 1, bucket]["needed"] = now

    def may_go(iteration, bucket):
        """Whether a complete bucket may be sent: in turn, not before all of smaller rank are complete."""
        if not in_turn:
            return True
        ranks = ranks_of_iteration(iteration, buckets)
        smaller = [other for other in range(len(buckets)) if ranks[other] < ranks[bucket]]
        return all(computed.get((iteration, other), 0) == len(streams) for other in smaller)

    def go_on(stream):
        """Let a worker do all it can do now."""
        while True:
            if stream.running and stream.running[1] == 0:
                kind, layer, _ = stream.running[0]
                if kind == "backward":
                    for bucket, members in enumerate(buckets):
                        if layer == min(members):
                            key = stream.iteration, bucket
                            computed[key] = computed.get(key, 0) + 1
                            transfers.setdefault(key, {})
                            if computed[key] == len(streams):
                                rank = ranks_of_iteration(stream.iteration, buckets)[bucket]
                                transfers[key]["ready"] = now
                                waiting[key] = ((rank, now, bucket), chunks(bucket_bytes[bucket]))
                stream.running = None
                stream.position += 1
                if stream.position == len(ops):
                    stream.iteration, stream.position = stream.iteration + 1, 0
                reached(stream)
            if stream.running or stream.is_done:
                return
            op = ops[stream.position]
            if any((stream.iteration - 1, bucket) not in arrived for bucket in awaited(op)):
                return
            if op[0] == "forward" and op[1] == 0 and stream.iteration > 0:
                stream.starts.append(now)
            if op[0] == "backward" and stream.iteration == iterations + 1:
                stream.is_done = True
                return
            stream.running = [op, Fraction((op[2] * stream.pace[stream.iteration] * 2 + PPM) // (2 * PPM))]

    for stream in streams:
        reached(stream)
    while True:
        # What compute can do now.
        for stream in streams:
            go_on(stream)
        if all(stream.is_done for stream in streams):
            measured = [[transfers[i, b] for b in range(len(buckets))] for i in range(1, iterations + 1)]
            return [stream.starts for stream in streams], measured
        # What the network can do now.
        sendable = [key for key in waiting if may_go(*key)]
        if on_network is None and sendable and now >= free_at:
            chosen = min(sendable, key=lambda bucket: waiting[bucket][0])
            size = waiting[chosen][1].pop(0)
            # Its first byte, behind what each transfer costs by itself.
            transfers[chosen].setdefault("start", now + schedule["overhead_ps"])
            on_network = [chosen, occupancy(size)]
        # To the next instant.
        speed = 1 / slowdown if on_network else Fraction(1)
        steps = [on_network[1]] if on_network else [free_at - now] if sendable and free_at > now else []
        steps += [stream.running[1] / speed for stream in streams if stream.running]
        step = min(steps)
        now += step
        for stream in streams:
            if stream.running:
                stream.running[1] -= step * speed
        if on_network:
            on_network[1] -= step
            if on_network[1] == 0:
                bucket = on_network[0]
                if not waiting[bucket][1]:
                    del waiting[bucket]
                    transfers[bucket]["end"] = now
                    arrived.add(bucket)
                on_network = None
                free_at = now + schedule["sync_ps"]


class Worker:
    """What one worker, or all alike, is doing."""

    def __init__(self, pace):
        self.pace = pace
        self.iteration, self.position = 0, 0
        self.running = None  # [op, work left]
        self.starts = []
        self.is_done = False
