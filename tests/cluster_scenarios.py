"""Scenarios whose cluster the tests replace, as dictionaries and as files."""

import gradtide as gt
from gradtide import presets

LAYERS = [{"name": f"l{i}", "forward": "1ms", "backward": "2ms", "parameters": "1MB"} for i in range(3)]
OF_NODES = [row["name"] for row in presets.list_presets("cluster") if "gpus" in row]


def scenario(cluster=None, workers=4, **more):
    job = {"model": {"layers": LAYERS}, "workers": workers, "iterations": 2}
    return gt.Scenario.from_dict({"job": {"train": job}, **({"cluster": cluster} if cluster else {}), **more})


def written(tmp_path, text, name="mine.toml"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def small(name, **more):
    return scenario(f"{name}/2", workers=16 if name in OF_NODES else 2, **more)


def busy(name):
    """Return a scenario with about a hundred background flows of each host, however fast its links are."""
    size = small(name).link_rate_bps // 10**9 * 5000
    cdf = [{"bytes": f"{size // 2}B", "cdf": 0}, {"bytes": f"{2 * size}B", "cdf": 1}]
    return small(name, traffic={"web": {"cdf": cdf, "load": 0.02}}, run={"engine": "fluid", "duration": "300ms"})
