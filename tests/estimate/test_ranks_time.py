"""C4: what collectives take, and how much of that computation hides."""

from __future__ import annotations

import pytest

from mindtorch.base.clusters import Cluster, split_target
from mindtorch.base.errors import UsageError
from mindtorch.cli import report_cluster
from mindtorch.cli.render import Canvas
from mindtorch.profile.cost import targets
from mindtorch.profile.cost.collectives import Fitted, Links, links_of, on_wire
from mindtorch.profile.estimate import communication
from mindtorch.profile.estimate.all_ranks import every_rank, layout, spans
from mindtorch.profile.estimate.communication import rows, simulate
from mindtorch.profile.estimate.exchanged import Call, Event

EIGHT = tuple(range(8))
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "barrier")


def test_C4_bytes_on_the_wire_are_those_of_the_bus_bandwidth() -> None:
    assert on_wire("all_reduce", 800, 8) == 1400 and on_wire("all_gather", 800, 8) == 700
    assert on_wire("reduce_scatter", 800, 2) == 400 and on_wire("broadcast", 800, 8) == 800
    assert (
        on_wire("all_to_all", 800, 8) == 700 and on_wire("reduce", 800, 8) == 800 and on_wire("all_reduce", 800, 1) == 0
    )


def test_C4_between_machines_an_all_to_all_sends_what_is_for_others_over_the_network() -> None:
    fitted = {"all_to_all": Fitted(0.0, 0.0, 0.0, (100.0, 100.0, 100.0))}
    links = Links(100.0, fitted, 1.0, 10.0, "x")
    assert links.seconds("all_to_all", 800, 8) == 7.0
    assert links.seconds("all_to_all", 800, 8, 2) == pytest.approx(40.0, abs=1e-3), "half of it, at the network's rate"
    assert links.seconds("all_to_all", 800, 8, 8) == pytest.approx(70.0, abs=1e-3)
    assert Links(100.0, fitted, 1.0, 1e6, "x").seconds("all_to_all", 800, 8, 2) == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("computed,exposed", [(0.0, 4.0), (3.0, 1.0), (4.0, 0.0), (5.0, 0.0)])
def test_C4_what_is_exposed_is_what_computation_does_not_cover(computed: float, exposed: float) -> None:
    one = Call("all_reduce", 8, EIGHT)
    (timed,) = simulate([one], [Event(0, 0, False), Event(1, 0, True)], [0.0, computed], lambda call: 4.0)
    assert (timed.seconds, timed.exposed) == (4.0, exposed)
    first, second = simulate(
        [one, one],
        [Event(0, 0, False), Event(0, 1, False), Event(1, 1, True), Event(1, 0, True)],
        [0.0, computed],
        lambda call: 4.0,
    )
    assert (first.exposed, second.exposed) == (max(4.0 - computed, 0.0), min(8.0 - computed, 4.0))


@pytest.mark.parametrize("target", ["h100", "a100", "b200", "l40s", "h200", "l4", "unheard-of", "h100-pcie"])
@pytest.mark.parametrize("kind", KINDS)
def test_C4_larger_takes_longer(target: str, kind: str) -> None:
    links = links_of(target)
    for ranks, machines in ((2, 1), (3, 1), (8, 1), (64, 8), (24, 3)):
        times = [links.seconds(kind, n, ranks, machines) for n in (0, 1 << 10, 1 << 20, 1 << 30)]
        assert 1e-6 < times[0] < 2e-4 and times == sorted(times), times
    assert links.seconds(kind, 1 << 30, 1) == 0


def test_C4_rates_of_large_messages_are_near_the_links() -> None:
    """Nobody is faster than the wires, but for reductions in the switches; and large messages get most of them."""
    for target, link in (("h100", 450e9), ("a100", 300e9), ("b200", 900e9)):
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            rate = on_wire(kind, 1 << 30, 8) / links_of(target).seconds(kind, 1 << 30, 8)
            assert 0.6 * link < rate < 1.1 * link, (target, kind, rate)


@pytest.mark.parametrize("target", targets.shipped())
def test_C10_every_target_has_its_own_links(target: str) -> None:
    """And nothing is carried faster than by them, but for sums in NVLink's switches."""
    links = links_of(target)
    assert not links.assumed and links.link in (16e9, 32e9, 64e9, 150e9, 196e9, 300e9, 448e9, 450e9, 900e9)
    sheet = targets.shipped()[target]
    assert (links.link >= 100e9) == (sheet.device == "npu" or any(
        word in sheet.name for word in ("SXM", "HGX", "MI300X")
    )), sheet.name  # fmt: skip
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for ranks in (2, 4, 8):
            rate = on_wire(kind, 1 << 30, ranks) / links.seconds(kind, 1 << 30, ranks)
            assert rate < 1.1 * links.link, (kind, ranks)


def test_C10_an_accelerator_without_links_is_said_to_have_others() -> None:
    assert links_of("mine").assumed and links_of("h100-something").assumed and links_of("mine").link == 450e9
    for target, words in (
        ("mine", "450 GB/s each way between accelerators is assumed, as for h100: the target gives no figure"),
        (
            "l4",
            "32 GB/s each way between accelerators; collectives are assumed to come as near to it as measured on l40s",
        ),
        ("h100", "450 GB/s each way between accelerators"),
    ):
        canvas = Canvas(width=100, color=False)
        facts = communication.facts(
            [communication.Timed(0, Call("all_reduce", 1000, EIGHT), 1.0, 1.0)], Cluster(8),
            links_of(target), True,
        )  # fmt: skip
        report_cluster.communication({"cluster": facts, "totals": {"time_s": 2.0}}, canvas)
        text = " ".join(canvas.text().split())
        assert text.endswith(f"within a machine: {words}")
        assert facts["links_fitted"] == (target == "h100") and facts["links_assumed"] == (target == "mine")


def test_C4_between_machines_the_network_is_the_limit() -> None:
    slow, fast = links_of("h100", 12.5e9), links_of("h100", 1e15)
    assert slow.seconds("all_reduce", 1 << 30, 16, 2) > 3 * fast.seconds("all_reduce", 1 << 30, 16, 2)
    assert slow.seconds("all_reduce", 1 << 30, 8, 1) == fast.seconds("all_reduce", 1 << 30, 8, 1)
    assert slow.seconds("send", 1 << 30, 2, 2) == pytest.approx((1 << 30) / 12.5e9, rel=0.1)
    assert links_of("h100").network == 50e9  # 400 Gb/s


def test_C4_what_is_waited_for_is_exposed_from_the_last_one_back() -> None:
    """Each at most for as long as it takes."""
    calls = [Call("all_reduce", 8, EIGHT)] * 3
    started = [Event(0, number, False) for number in range(3)]
    timed = simulate(calls, [*started, Event(1, 2, True)], [0.0, 1.0], lambda call: 2.0)
    assert [each.exposed for each in timed] == [1.0, 2.0, 2.0]
    timed = simulate(calls, [*started, Event(1, 0, True), Event(2, 2, True)], [0.0, 1.0, 2.0], lambda call: 2.0)
    assert [each.exposed for each in timed] == [1.0, 1.0, 2.0]
    timed = simulate(calls, [*started, Event(1, 2, True), Event(1, 1, True)], [0.0, 6.0], lambda call: 2.0)
    assert [each.exposed for each in timed] == [0.0, 0.0, 0.0], "all of them had ended"


def test_C4_what_is_waited_for_is_exposed() -> None:
    calls = [Call("all_reduce", 1000, EIGHT)] * 3
    computed = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]  # one second before each position but the first
    # The first is waited for at once, the second a second later, the third never.
    events = [Event(1, 0, False), Event(1, 0, True), Event(2, 1, False), Event(3, 1, True), Event(4, 2, False)]
    timed = simulate(calls, events, computed, lambda call: 1.5)
    assert [each.exposed for each in timed] == [1.5, 0.5, 0.0] and [each.position for each in timed] == [1, 2, 4]
    [row] = rows(timed, Cluster(8))
    assert (row["kind"], row["ranks"], row["count"], row["bytes"]) == ("all_reduce", 8, 3, 3000)
    assert (row["time_s"], row["exposed_s"], row["overlapped_s"]) == (4.5, 2.0, 2.5)


def test_C4_collectives_run_one_after_another() -> None:
    calls = [Call("all_gather", 8, EIGHT)] * 2
    events = [Event(0, 0, False), Event(0, 1, False), Event(1, 1, True)]
    timed = simulate(calls, events, [0.0, 1.0], lambda call: 2.0)
    assert sum(each.exposed for each in timed) == 3.0  # four seconds of the two, one of which is hidden


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h100", (None, "h100")), ("64xh100", (64, "h100")), ("2Xa100", (2, "a100")),
        ("mine.toml", (None, "mine.toml")),
        ("8xmine.toml", (8, "mine.toml")), ("910b", (None, "910b")), ("4x910b", (4, "910b")),
        ("rtx4090", (None, "rtx4090")),
    ],
)  # fmt: skip
def test_C4_targets_with_a_number(text: str, found: object) -> None:
    assert split_target(text) == found


@pytest.mark.parametrize("text", ["0xh100", "8x", "99999999xh100"])
def test_C4_targets_with_a_number_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=text):
        split_target(text)


def test_C4_places_in_a_cluster() -> None:
    place = Cluster(20, 17)
    assert (place.local_rank, place.machine, place.local_size, place.machines) == (1, 2, 4, 3)
    variables = place.environment()
    assert variables["RANK"] == "17" and variables["LOCAL_RANK"] == "1" and variables["LOCAL_WORLD_SIZE"] == "4"
    assert place.machines_of((0, 7)) == 1 and place.machines_of((7, 8)) == 2


def test_C4_the_layout_of_ranks_is_seen_from_their_groups() -> None:
    assert layout(64, []) == [(1, 64)]
    assert layout(64, [list(range(64)), [0, 1], list(range(0, 64, 2))]) == [(1, 2), (2, 32)]
    assert layout(8, [[0, 1]], [2]) == [(1, 2), (2, 4)]


def test_C4_equal_ranks_run_once(tmp_path: object) -> None:
    def run(rank: int) -> dict:
        held = {0: 1, 63: 3}.get(rank, 2)
        return {
            "totals": {"peak_bytes": held, "time_s": 1.0, "flops": 1, "ops": 1},
            "memory": {"peak_bytes": held, "categories": {}, "fits": True},
            "cluster": {"exposed_s": 0.0, "communication_s": 0.0, "collectives": [], "groups": [], "strides": []},
            "exit_code": 0,
        }

    found = every_rank(64, run)
    assert [row["rank"] for row in found] == list(range(64))
    assert [row["peak_bytes"] for row in found] == [1, *[2] * 62, 3]
    assert len({row["ran_as"] for row in found}) < 12
    assert [which for which, _ in spans(found)] == ["0", "1-62", "63"]
