"""docs/models/pipe.md a second time: exact fractions, no shared code with the engine, as plain as it can be written.

The state is what compute is doing, what the network is doing, which buckets are ready and which have arrived. At every
instant first everything that ends is taken in, then compute starts what it can (an op of zero length ends at once), and
then an idle network takes the most urgent ready bucket.
"""

from fractions import Fraction


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
        (starts, transfers): start of each forward pass from the first measured iteration on, one more than
        `iterations`; and transfers[iteration][bucket] = {"ready", "start", "end", "needed"} for the measured ones.
        Fractions of picoseconds.
    """
    job, cluster = spec["jobs"][0], spec["cluster"]
    layers, schedule = job["layers"], job["schedule"]
    workers = len(job["hosts"])
    barrier = schedule["barrier"]
    slowdown = Fraction(job["overlap_slowdown_ppm"], 10**6)
    rate = cluster["link"]["rate_bps"] * cluster["link"]["efficiency_ppm"] // 10**6
    delay = cluster["link"]["delay_ps"] + cluster["host_latency_ps"]
    count = len(layers)
    sizes = [layer["parameter_bytes"] for layer in layers]
    buckets = fuse(sizes, schedule["fusion"]["bytes"]) if workers > 1 else []
    bucket_bytes = [sum(sizes[layer] for layer in bucket) for bucket in buckets]

    def chunks(size):
        limit = schedule["chunk_bytes"] or size
        return [min(limit, size - sent) for sent in range(0, size, limit)]

    def occupancy(size):
        steps = 2 * (workers - 1)
        return job["transfer_overhead_ps"] + steps * (Fraction(size * 8 * 10**12, workers * rate) + delay)

    def program():
        update = [("update", i, layers[i]["update_ps"]) for i in range(count)]
        forward = [("forward", i, layers[i]["forward_ps"]) for i in range(count)]
        backward = [("backward", i, layers[i]["backward_ps"]) for i in reversed(range(count))]
        if barrier:
            return [("barrier", 0, 0), *update, *forward, *backward]
        return [op for pair in zip(update, forward, strict=True) for op in pair] + backward

    now = Fraction(job["start_ps"])
    iteration, position, ops = 0, 0, program()
    running = None  # [op, work left, working at full speed?]
    on_network = None  # [iteration, bucket, time left]
    waiting = {}  # (iteration, bucket) -> (key, chunks left)
    arrived = {(-1, bucket) for bucket in range(len(buckets))}
    transfers = {}
    starts = []

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

    def reached():
        for bucket in first_used(ops[position]):
            if iteration > 0:
                transfers[iteration - 1, bucket]["needed"] = now

    reached()
    while True:
        # What compute can do now.
        while True:
            if running and running[1] == 0:
                kind, layer, _ = running[0]
                if kind == "backward":
                    for bucket, members in enumerate(buckets):
                        if layer == min(members):
                            rank = ranks_of_iteration(iteration, buckets)[bucket]
                            transfers[iteration, bucket] = {"ready": now}
                            waiting[iteration, bucket] = ((rank, now, bucket), chunks(bucket_bytes[bucket]))
                running = None
                position += 1
                if position == len(ops):
                    iteration, position = iteration + 1, 0
                reached()
            if running:
                break
            op = ops[position]
            if any((iteration - 1, bucket) not in arrived for bucket in awaited(op)):
                break
            if op[0] == "forward" and op[1] == 0 and iteration > 0:
                starts.append(now)
            if op[0] == "backward" and iteration == iterations + 1:
                measured = [[transfers[i, b] for b in range(len(buckets))] for i in range(1, iterations + 1)]
                return starts, measured
            running = [op, Fraction(op[2])]
        # What the network can do now.
        if on_network is None and waiting:
            chosen = min(waiting, key=lambda bucket: waiting[bucket][0])
            size = waiting[chosen][1].pop(0)
            transfers[chosen].setdefault("start", now)
            on_network = [chosen, occupancy(size)]
        # To the next instant.
        speed = 1 / slowdown if on_network else Fraction(1)
        steps = [on_network[1]] if on_network else []
        if running:
            steps.append(running[1] / speed)
        step = min(steps)
        now += step
        if running:
            running[1] -= step * speed
        if on_network:
            on_network[1] -= step
            if on_network[1] == 0:
                bucket = on_network[0]
                if not waiting[bucket][1]:
                    del waiting[bucket]
                    transfers[bucket]["end"] = now
                    arrived.add(bucket)
                on_network = None
