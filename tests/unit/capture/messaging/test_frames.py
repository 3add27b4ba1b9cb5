"""Frames: every frame comes back as it was, however the bytes are chunked; garbage is an error and nothing else."""

import contextlib
import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.errors import FrameError, FrameTooLargeError
from capture.messaging import codec, frames
from reactor.errors import ProtocolError, Scope
from reactor.ids import KEY_SPACE, MAX_TS, CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    Barrier,
    Body,
    DispatchResponse,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    Place,
    RemoveSpan,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
    StartWorker,
    StopWorker,
    WorkerStage,
    WorkerStatus,
)
from reactor.records.changefeed import RunningError, Unit
from tests.example_counts import many

ints = st.integers(min_value=0, max_value=(1 << 63) - 1)
timestamps = ints.map(Ts)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
seconds = st.floats(min_value=0, max_value=1e12)


@st.composite
def spans(draw: st.DrawFn) -> TableSpan:
    start = draw(st.integers(min_value=0, max_value=KEY_SPACE - 1))
    return TableSpan(draw(ints), start, draw(st.integers(min_value=start + 1, max_value=KEY_SPACE)))


checkpoints = st.builds(SpanCheckpoint, timestamps, timestamps)
statuses = st.builds(SpanStatus, spans(), st.sampled_from(SpanState), checkpoints, seconds)
errors = st.builds(
    RunningError,
    code=texts,
    message=texts,
    capture=st.none() | texts.map(CaptureId),
    time=seconds,
    retryable=st.booleans(),
    table_id=st.none() | ints,
    scope=st.sampled_from(Scope),
)
workers = st.builds(
    WorkerStatus,
    texts,
    st.sampled_from(Unit),
    ints,
    st.sampled_from(WorkerStage),
    rows_done=ints,
    rows_total=ints,
    bytes_done=ints,
    error=st.none() | errors,
)
barriers = st.builds(Barrier, timestamps, st.lists(st.tuples(ints, timestamps), max_size=3).map(tuple))
bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(Heartbeat, st.lists(spans(), max_size=4).map(tuple), st.booleans(), barriers, ints, ints, st.booleans()),
    st.builds(
        HeartbeatResponse,
        st.lists(statuses, max_size=4).map(tuple),
        st.sampled_from(Liveness),
        st.none() | workers,
        ints,
        ints,
        ints,
        ints,
        st.booleans(),
        st.none() | st.builds(Place, checkpoints, seconds),
        st.lists(spans(), max_size=4).map(tuple),
    ),
    st.builds(AddSpan, spans(), st.booleans(), checkpoints),
    st.builds(RemoveSpan, spans()),
    st.builds(DispatchResponse, statuses, ints),
    st.builds(StartWorker, texts, st.sampled_from(Unit), ints),
    st.builds(StopWorker, texts, ints),
)
headers = st.builds(Header, texts, ints, texts, ints)
messages = st.builds(Message, texts.map(CaptureId), texts.map(CaptureId), texts.map(ChangefeedId), headers, bodies)
all_frames: st.SearchStrategy[frames.Frame] = st.one_of(
    st.builds(frames.Hello, texts.map(CaptureId), texts.map(CaptureId), ints, ints, ints, ints),
    st.builds(frames.Welcome, ints, ints, ints),
    st.builds(frames.Refuse, st.sampled_from(frames.Reason), texts),
    st.builds(frames.Data, texts, ints, messages),
    st.builds(frames.Ack, texts, ints),
    st.just(frames.Ping()),
    st.just(frames.Pong()),
)

HEADER = Header("1", 7, "epoch", 3)
STATUS = SpanStatus(TableSpan(5), SpanState.REPLICATING, SpanCheckpoint(Ts(1), Ts(2)), 3.5)


def message(body: Body) -> Message:
    return Message(CaptureId("a"), CaptureId("b"), ChangefeedId("feed"), HEADER, body)


def framed(row: object) -> bytes:
    payload: bytes = msgpack.packb(row)
    return struct.pack(">IB", len(payload), 1) + payload


def data_with_body(tag: int, body: object) -> bytes:
    return framed([4, "topic", 1, ["a", "b", "feed", ["1", 7, "epoch", 3], tag, body]])


def body_of(data: bytes) -> Body:
    (frame,) = frames.Decoder().feed(data)
    assert isinstance(frame, frames.Data)
    return frame.message.body


@given(frame=all_frames)
def test_a_frame_comes_back_as_it_was(frame: frames.Frame) -> None:
    assert frames.Decoder().feed(frames.encode(frame)) == [frame]


@given(sent=st.lists(all_frames, max_size=5), cuts=st.lists(st.integers(min_value=1, max_value=60), min_size=1))
def test_the_way_bytes_are_chunked_does_not_matter(sent: list[frames.Frame], cuts: list[int]) -> None:
    data, decoder, received = b"".join(map(frames.encode, sent)), frames.Decoder(), list[object]()
    turn = 0
    while data:
        cut = cuts[turn % len(cuts)]
        received += decoder.feed(data[:cut])
        data, turn = data[cut:], turn + 1
    assert received == sent


@given(chunks=st.lists(st.binary(max_size=50), max_size=5))
def test_garbage_is_a_protocol_error_and_nothing_else(chunks: list[bytes]) -> None:
    decoder = frames.Decoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except ProtocolError:
        pass


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | texts | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=12,
)


@pytest.mark.matrix
@settings(max_examples=many(300))
@given(kind=st.integers(0, 8), rest=st.lists(values, max_size=7))
def test_wellformed_nonsense_is_a_frame_or_a_protocol_error(kind: int, rest: list[object]) -> None:
    with contextlib.suppress(ProtocolError):
        frames.Decoder().feed(framed([kind, *rest]))


@pytest.mark.matrix
@settings(max_examples=many(300))
@given(tag=st.integers(0, 8), body=st.lists(values, max_size=7))
def test_nonsense_in_a_body_is_a_message_or_a_protocol_error(tag: int, body: list[object]) -> None:
    with contextlib.suppress(ProtocolError):
        frames.Decoder().feed(data_with_body(tag, body))


@given(sent=messages, at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_another_frame_or_a_protocol_error(sent: Message, at: int, bit: int) -> None:
    data = bytearray(frames.encode(frames.Data("topic", 1, sent)))
    data[at % len(data)] ^= 1 << bit
    with contextlib.suppress(ProtocolError):
        frames.Decoder().feed(bytes(data))


def test_after_an_error_the_decoder_stays_broken() -> None:
    decoder = frames.Decoder()
    with pytest.raises(FrameError):
        decoder.feed(framed("not an array"))
    with pytest.raises(FrameError):
        decoder.feed(frames.encode(frames.Ping()))


def test_an_incomplete_frame_waits_for_its_rest() -> None:
    decoder, data = frames.Decoder(), frames.encode(frames.Ack("topic", 3))
    assert decoder.feed(data[:-1]) == []
    assert decoder.feed(data[-1:] + data) == [frames.Ack("topic", 3)] * 2


def test_a_length_over_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(FrameError, match="over the limit of 100"):
        frames.Decoder(bytes_max=100).feed(struct.pack(">IB", 101, 1))


def test_a_message_over_the_limit_is_refused_before_it_is_sent() -> None:
    heavy = frames.Data("topic", 1, message(HeartbeatResponse((STATUS,) * 100)))
    with pytest.raises(FrameTooLargeError, match="limit of 1000"):
        frames.encode(heavy, bytes_max=1000)


def test_another_protocol_on_the_port_is_named() -> None:
    with pytest.raises(FrameError, match="is this a port of captures"):
        frames.Decoder().feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def test_an_unknown_body_is_skipped_and_keeps_its_place() -> None:
    data = data_with_body(99, [1, 2]) + frames.encode(frames.Ping())
    assert frames.Decoder().feed(data) == [frames.Skipped(99, "topic", 1), frames.Ping()]


def test_an_unknown_frame_is_skipped() -> None:
    assert frames.Decoder().feed(framed([77, "what", {}])) == [frames.Skipped(77)]


def test_a_reason_of_a_newer_version_is_still_a_refusal() -> None:
    assert frames.Decoder().feed(framed([3, 250, "why"])) == [frames.Refuse(frames.Reason.BROKEN, "why")]


def test_what_a_newer_version_adds_at_the_end_is_ignored() -> None:
    row = [*codec.message_row(message(RemoveSpan(TableSpan(5)))), "new"]
    row[5] = [[5, 0, KEY_SPACE - 1, "new"], "new"]
    assert body_of(framed([4, "topic", 1, row, "new"])) == RemoveSpan(TableSpan(5))


def test_what_an_older_version_leaves_out_takes_its_default() -> None:
    assert body_of(data_with_body(1, [])) == Heartbeat()
    short = [5, 0, KEY_SPACE - 1, 4, 1, 2]
    assert body_of(data_with_body(2, [[short, [*short, 3.5]]])) == HeartbeatResponse(
        (SpanStatus(TableSpan(5), SpanState.REPLICATING, SpanCheckpoint(Ts(1), Ts(2))), STATUS)
    )


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        (3, [[5, 0, 9], False]),
        (4, [[5, 9, 8]]),
        (4, [[5, 0, -1]]),
        (4, [["5", 0, 9]]),
        (4, [[True, 0, 9]]),
        (5, [[5, 0, 9, 7, 1, 2]]),
        (5, [[5, 0, 9, 4, 1, 1 << 63]]),
        (5, [[5, 0, 9, 4, 1, 2, float("nan")]]),
        (6, ["source", "swim", 1]),
        (7, ["source", 1.0]),
        (1, [[], 0]),
        (2, [[], "alive", []]),
    ],
)
def test_a_body_that_is_almost_right_is_refused(tag: int, body: object) -> None:
    with pytest.raises(FrameError):
        frames.Decoder().feed(data_with_body(tag, body))


@pytest.mark.parametrize(
    ("major", "minor", "is_fine"), [(1, 0, True), (1, 1, True), (1, 2, True), (1, 3, False), (2, 0, False)]
)
def test_neighbouring_versions_understand_each_other(major: int, minor: int, is_fine: bool) -> None:
    problem = frames.version_problem(frames.Welcome(1, major, minor))
    assert (problem == "") is is_fine
    assert "\n" not in problem


def test_the_whole_table_fits_into_64_bits() -> None:
    barrier = Barrier(MAX_TS, ((1, Ts(5)),))
    body = Heartbeat((TableSpan(1), TableSpan(1, KEY_SPACE - 1, KEY_SPACE)), is_stopping=True, barrier=barrier)
    assert body_of(frames.encode(frames.Data("topic", 1, message(body)))) == body
