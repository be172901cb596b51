"""R1, R4: which messages a session sends, when, and what becomes of the replies; its worker is a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mindtorch.base.errors import MaterializationError, SessionLost
from mindtorch.engine.remote import hello
from mindtorch.engine.remote.exchange import Session
from mindtorch.engine.remote.lineage import Lineage, Parcel
from mindtorch.engine.remote.wire import dumps, loads


class Worker:
    """Notes what it is asked for, and answers with nothing."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []  # in each message whose reply was fetched
        self.posted: list[list[str]] = []
        self.up = self.down = 0
        self.change: Callable[[list[Any]], Any] = lambda answers: answers
        self.raises: list[BaseException] = []

    def post(self, message: bytearray) -> None:
        self.posted.append([request[0] for request in loads(message)])
        if self.raises:
            raise self.raises.pop()

    def send(self, message: bytearray) -> bytearray:
        if self.raises:
            raise self.raises.pop()
        requests = loads(message)
        self.asked.append([request[0] for request in requests])
        if requests[0][0] == "hello":
            return dumps([(tuple(hello.this_side()), "cpu"), *[None] * (len(requests) - 1)])
        reply = dumps(self.change([None] * len(requests)))
        self.up, self.down = self.up + len(message), self.down + len(reply)
        return reply


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def session(worker: Worker) -> Session:
    """The sides know each other."""
    made = Session(worker.send, worker.post)
    made._ask("note")
    made._exchange()
    worker.asked.clear(), worker.posted.clear()
    worker.up = worker.down = 0
    made.stats.update(dict.fromkeys(made.stats, 0))
    return made


def ahead(session: Session, answer: Callable[[Any], None] | None = None) -> None:
    session._ask("note", answer=answer)
    session._send_on()


def raising(error: Exception) -> Callable[[Any], None]:
    def answer(_given: Any) -> None:
        raise error

    return answer


def test_R1_requests_wait_for_a_question_or_until_there_are_eight_mebibytes(session: Session, worker: Worker) -> None:
    session._ask("note", nbytes=(8 << 20) - 64)
    session._ask("note")
    assert worker.asked == []
    session._ask("note", nbytes=1)
    assert worker.asked == [["note"] * 3]
    session._ask("note", nbytes=(8 << 20) - 1)  # counted afresh
    assert len(worker.asked) == 1
    assert session._question("note") is None
    assert worker.asked[1:] == [["note", "note"]]


def test_R1_what_goes_behind_a_message_is_sent_with_it_and_not_waited_for(session: Session, worker: Worker) -> None:
    found: list[Any] = []
    session._ask("note", answer=lambda _given: found.append("waited for"))
    session._line[-1].behind.append((("more",), lambda _given: found.append("behind")))
    session._exchange()
    assert worker.posted == [["note"], ["more"]] and worker.asked == [["note"]] and found == ["waited for"]
    assert session.stats["messages"] == session.stats["waits"] == 1
    session._exchange()
    assert worker.asked[1:] == [["more"]] and found[1:] == ["behind"]
    assert session.stats["messages"] == 2 and session.stats["waits"] == 1


def test_R1_nothing_to_say_is_no_message(session: Session, worker: Worker) -> None:
    session._exchange(), session._send_on()
    assert worker.asked == worker.posted == [] and session.stats["messages"] == 0


@pytest.mark.parametrize("posts", [True, False])
def test_R1_four_messages_are_under_way_at_most(posts: bool, worker: Worker, session: Session) -> None:
    if not posts:
        session._post = None
    for k in range(4):
        ahead(session)
        assert len(worker.posted) == (k + 1 if posts else 0) and worker.asked == []
    ahead(session)
    assert worker.asked == [["note"]]
    session._exchange()
    assert worker.asked == [["note"]] * 5 and worker.posted == [["note"]] * (5 if posts else 0)


def test_R1_nothing_is_sent_ahead_before_the_sides_know_each_other(worker: Worker) -> None:
    session = Session(worker.send, worker.post)
    ahead(session)
    assert worker.asked == worker.posted == []
    session._exchange()
    assert worker.asked == [["hello"], ["note"]]
    assert session.stats["messages"] == 1 and session.stats["waits"] == 0


def test_R1_messages_and_their_bytes_are_counted(session: Session, worker: Worker) -> None:
    ahead(session), ahead(session)
    session._ask("note")
    session._exchange()
    assert (session.stats["messages"], session.stats["waits"]) == (3, 1)
    assert (session.stats["bytes_up"], session.stats["bytes_down"]) == (worker.up, worker.down)


def test_R1_only_replies_that_bring_it_are_taken_in(session: Session, worker: Worker) -> None:
    came: list[int] = []
    for k in range(3):
        ahead(session, lambda _given, k=k: came.append(k))  # type: ignore[misc]
    session._take_in_while(lambda: False)
    assert (came, session.stats["waits"]) == ([], 0)
    session._take_in_while(lambda: len(came) < 2)
    assert (came, session.stats["waits"]) == ([0, 1], 1)
    session._take_in_while(lambda: len(came) < 9)
    assert (came, session.stats["waits"]) == ([0, 1, 2], 2)
    session._take_in_while(lambda: len(came) < 9)  # nothing is under way
    assert session.stats["waits"] == 2


def test_R1_what_was_told_is_said_once(session: Session, worker: Worker) -> None:
    session._epochs[0] = 1
    for _ in range(2):
        session._ask("note")
        session._exchange()
    assert worker.asked == [["seen", "note"], ["note"]]


@pytest.mark.parametrize(("lost_write", "every", "told"), [
    (False, False, False), (False, True, True), (True, False, True), (None, False, True),
])  # fmt: skip
def test_R1_a_failure_of_what_was_sent_ahead_is_told_where_something_was_not_written(
    lost_write: bool | None, every: bool, told: bool, session: Session
) -> None:
    failure = ValueError("no") if lost_write is None else MaterializationError("no")
    if lost_write is not None:
        failure.lost_write = lost_write  # type: ignore[union-attr]
    ahead(session, raising(failure))
    if told:
        with pytest.raises(type(failure), match="no"):
            session._exchange(every=every)
    session._exchange(every=every)


def test_R1_of_two_failures_the_first_is_told_after_all_answers(session: Session) -> None:
    came: list[Any] = []
    for answer in (raising(KeyError("first")), raising(ValueError("second")), came.append):
        session._ask("note", answer=answer)
    with pytest.raises(KeyError, match="first"):
        session._exchange()
    assert came == [None]
    failure = MaterializationError("waited for")
    failure.lost_write = False
    session._ask("note", answer=raising(failure))
    session._ask("note")
    with pytest.raises(MaterializationError, match="waited for"):
        session._exchange()
    for name in ("one", "other"):
        ahead(session, raising(KeyError(name)))
    with pytest.raises(KeyError, match="one"):
        session._exchange()
    session._exchange()


@pytest.mark.parametrize(("change", "why"), [
    (lambda answers: answers[:-1], "expected 2 answers, got"),
    (lambda answers: [*answers, [], []], "expected 2 answers, got"),
    (tuple, "expected 2 answers, got"),
    (lambda answers: [*answers, [("UserWarning", 3)]], "a warning"),
    (lambda answers: [None, 5], "expected no answer, got 5"),
    (lambda _answers: ("refused", "WireError", "no such name"), "refused a message: WireError: no such name"),
])  # fmt: skip
def test_R3_a_reply_that_is_none_ends_the_session(
    change: Callable[[list[Any]], Any], why: str, session: Session, worker: Worker
) -> None:
    worker.change = change
    session._ask("note"), session._ask("note")
    with pytest.raises(SessionLost, match=why):
        session._exchange()
    for _ in range(2):
        with pytest.raises(SessionLost, match=why):
            session._ask("note")
        with pytest.raises(SessionLost, match=why):
            session._exchange()
    assert len(worker.asked) == 1


def test_R1_a_reply_may_have_warnings_behind_the_answers(session: Session, worker: Worker) -> None:
    worker.change = lambda answers: [*answers, [("UserWarning", "mind")]]
    session._ask("note")
    with pytest.warns(UserWarning, match="mind"):
        session._exchange()


def test_R4_a_message_that_was_interrupted_is_sent_again_where_that_is_possible(
    session: Session, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.raises = [KeyboardInterrupt()]
    monkeypatch.setattr(session, "_post", None)
    session._resumes = True
    session._ask("note")
    with pytest.raises(KeyboardInterrupt):
        session._exchange()
    session._exchange()
    assert worker.asked == [["note"]]
    session._resumes = False
    worker.raises = [KeyboardInterrupt()]
    session._ask("note")
    with pytest.raises(KeyboardInterrupt):
        session._exchange()
    with pytest.raises(SessionLost, match="the program interrupted a message"):
        session._exchange()


class Renewed(Session):
    """Has another worker for each that is lost."""

    other: Worker | None = None

    def _renewed(self) -> Callable[[bytearray, Sequence[Parcel]], bytearray | None] | None:
        if self.other is None:
            return None
        self._send, self._post = self.other.send, self.other.post
        return lambda message, _parcels: self.other.send(message)  # type: ignore[union-attr]


@pytest.fixture
def renewed(worker: Worker) -> Renewed:
    session = Renewed(worker.send, worker.post)
    session._lineage, session.other = Lineage(1 << 20), Worker()
    session._ask("note")
    session._exchange()
    return session


@pytest.mark.parametrize("posts", [False, True])
def test_R4_another_worker_repeats_all_messages_and_goes_on(posts: bool, renewed: Renewed, worker: Worker) -> None:
    for times in (1, 2):
        lost, renewed.other = renewed.other if times == 2 else worker, Worker()
        lost.raises = [ConnectionError("gone")]  # type: ignore[union-attr]
        before = len(renewed._lineage)  # type: ignore[arg-type]
        ahead(renewed) if posts else renewed._ask("note")
        renewed._exchange()
        assert renewed.other.asked == [["hello"], *[["note"]] * before]
        assert renewed.stats["rebuilt"] == times


def test_R4_a_worker_that_cannot_be_another_ends_the_session(worker: Worker) -> None:
    cases: dict[str, Callable[[Renewed], None]] = {
        "session lost: gone$": lambda session: setattr(session, "other", None),
        "bit for bit": lambda session: setattr(session.other, "change", lambda answers: [*answers, []]),
        "session lost: gone, too": lambda session: session.other.raises.append(ConnectionError("gone, too")),  # type: ignore[union-attr]
    }
    for why, spoil in cases.items():
        session = Renewed(worker.send, None)
        session._lineage, session.other = Lineage(1 << 20), Worker()
        session._ask("note")
        session._exchange()
        spoil(session)
        worker.raises = [ConnectionError("gone")]
        session._ask("note")
        with pytest.raises(SessionLost, match=why):
            session._exchange()


def test_R4_a_worker_that_refuses_or_fails_otherwise_is_not_replaced(worker: Worker) -> None:
    for error in (None, OSError("disk")):
        session = Renewed(worker.send, None)
        session._lineage, session.other = Lineage(1 << 20), Worker()
        session._ask("note")
        session._exchange()
        worker.raises = [] if error is None else [error]
        worker.change = lambda _answers: ("refused", "no")
        session._ask("note")
        with pytest.raises(SessionLost, match="refused a message: no" if error is None else "OSError: disk"):
            session._exchange()
        assert session.other.asked == []
        worker.change = lambda answers: answers


def test_R4_what_a_lineage_keeps_is_bounded(worker: Worker) -> None:
    assert Lineage(10).add(b"12345", b"", 0.0) and Lineage(10).add(b"1234567890", b"", 0.0)
    assert not Lineage(10).add(b"12345678901", b"", 0.0)
    assert Lineage(10).add(b"12345", b"", 0.0, [(7, 2), (8, 3)])
    assert not Lineage(10).add(b"12345", b"", 0.0, [(7, 2), (8, 4)])
    assert Lineage(10).add(b"", b"", 120.0) and not Lineage(10).add(b"", b"", 120.5)
    both = Lineage(10)
    assert both.add(b"12345", b"", 60.0) and both.add(b"12345", b"", 59.0) and not both.add(b"1", b"", 0.0)
    both.drop()
    assert both.add(b"12345", b"", 600.0) and len(both) == 0 and not both.complete


def test_R4_a_lineage_is_repeated_in_order_and_its_replies_compared() -> None:
    kept, sent = Lineage(100), list[tuple[bytes, Sequence[Parcel]]]()
    kept.add(b"one", b"1", 0.0)
    kept.add(b"two", b"2", 0.0, [(5, 1)])
    assert len(kept) == 2 and kept.complete

    def answers(*replies: bytes | None) -> Callable[[bytearray, Sequence[Parcel]], bytes | None]:
        given = iter(replies)
        sent.clear()
        return lambda message, parcels: (sent.append((bytes(message), parcels)), next(given))[1]

    assert kept.repeat(answers(b"1", b"2")) and sent == [(b"one", ()), (b"two", [(5, 1)])]
    assert not kept.repeat(answers(b"1", b"3")) and not kept.repeat(answers(b"2", b"2"))
    assert not kept.repeat(answers(b"1", None)) and not kept.repeat(answers(None, b"2"))
    kept.may_differ()
    assert kept.repeat(answers(b"1", b"3")) and not kept.repeat(answers(b"2", b"2"))
    message = object()
    assert kept.may_repeat(message) and not kept.may_repeat(message) and kept.may_repeat(object())
    kept.drop()
    kept.may_differ()
    assert not kept.may_repeat(object())
