"""Tests threads that clients of libonnxruntime.so.1 create and join, and processors that they assign."""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_size_t, c_void_p

import numpy as np
import pytest
from onnx import helper
from onnxruntime_c import LIBRARY, Api, StatusError, model, tensor

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

WORK = ctypes.CFUNCTYPE(None, c_void_p)
CREATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p)
JOIN = ctypes.CFUNCTYPE(None, c_void_p)


class Client:
    """Creates and joins threads, and records the calls."""

    def __init__(self) -> None:
        self.threads: dict[int, threading.Thread] = {}
        self.options: list[int | None] = []
        self.create, self.join = CREATE(self._create), JOIN(self._join)

    def _create(self, options: int | None, work: int, argument: int) -> int:
        self.options.append(options)
        number = len(self.options)
        self.threads[number] = threading.Thread(target=lambda: WORK(work)(argument))
        self.threads[number].start()
        return number

    def _join(self, number: int) -> None:
        self.threads.pop(number).join()


def data() -> bytes:
    return model([helper.make_node("MatMul", ["x", "x"], ["y"])], [tensor("x", 1, [256, 256])], [tensor("y", 1, [256, 256])])


def session_of(api: Api, environment: c_void_p, options: c_void_p) -> c_void_p:
    return api.made("CreateSessionFromArray", environment, data(), c_size_t(len(data())), options)


def runs(api: Api, session: c_void_p) -> None:
    x = np.eye(256, dtype=np.float32)
    assert (api.run_arrays(session, {"x": x}, ["y"])[0] == x).all()


def options_for(api: Api, num_threads: int = 3) -> c_void_p:
    options = api.made("CreateSessionOptions")
    api.call("SetIntraOpNumThreads", options, num_threads)
    return options


def test_a_sessions_threads_are_the_clients(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        client, options = Client(), options_for(api)
        api.call("SessionOptionsSetCustomCreateThreadFn", options, client.create)
        api.call("SessionOptionsSetCustomThreadCreationOptions", options, c_void_p(77))
        api.call("SessionOptionsSetCustomJoinThreadFn", options, client.join)
        session = session_of(api, api.env, options)
        assert client.options == [77, 77]
        runs(api, session)
        assert len(client.threads) == 2
        api.call("ReleaseSession", session, result=None)
        assert not client.threads


def test_a_session_of_one_thread_makes_none(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        client, options = Client(), options_for(api, 1)
        api.call("SessionOptionsSetCustomCreateThreadFn", options, client.create)
        api.call("SessionOptionsSetCustomJoinThreadFn", options, client.join)
        runs(api, session_of(api, api.env, options))
        assert client.options == []


def test_threads_that_cannot_be_made_or_joined(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        client, nothing = Client(), CREATE(lambda *_: None)
        for create, join, words in ((client.create, None, "custom join thread function not set for intra op thread pool"), (nothing, client.join, "returned invalid handle")):
            options = options_for(api)
            api.call("SessionOptionsSetCustomCreateThreadFn", options, create)
            if join:
                api.call("SessionOptionsSetCustomJoinThreadFn", options, join)
            with pytest.raises(StatusError, match=words) as error:
                session_of(api, api.env, options)
            assert error.value.code == 1
        assert client.options == []


def test_an_environments_threads_are_the_clients(ours: Api) -> None:
    """Only Treadle's library is tested, as onnxruntime's single environment exists already."""
    client, threads = Client(), ours.made("CreateThreadingOptions")
    ours.call("SetGlobalIntraOpNumThreads", threads, 3)
    ours.call("SetGlobalCustomCreateThreadFn", threads, client.create)
    ours.call("SetGlobalCustomThreadCreationOptions", threads, c_void_p(5))
    with pytest.raises(StatusError, match="custom join thread function not set"):
        ours.made("CreateEnvWithGlobalThreadPools", 4, b"one", threads)
    ours.call("SetGlobalCustomJoinThreadFn", threads, client.join)
    environment, options = ours.made("CreateEnvWithGlobalThreadPools", 4, b"one", threads), ours.made("CreateSessionOptions")
    assert client.options == [5, 5]
    ours.call("DisablePerSessionThreads", options)
    session = session_of(ours, environment, options)
    ours.call("ReleaseEnv", environment, result=None)
    runs(ours, session)
    assert len(client.threads) == 2
    ours.call("ReleaseSession", session, result=None)
    assert not client.threads


AFFINITIES = {
    b"1;1": None,
    b"1-2;1-1": None,
    b"1,2;1": None,
    b"1;100000": None,
    b"0;1": "Processor id must start from 1",
    b"0-1;1": "Processor id must start from 1",
    b"a;1": "Processor id must consist of only digits: a",
    b"-1;1": "Processor id must consist of only digits",
    b" 1;1": "Processor id must consist of only digits",
    b"2-1;1": "Invalid processor interval: 2-1",
    b"1": "Number of affinities does not equal to thread_pool_size minus one, affinities: 1, thread_pool_size: 3",
    b"1;": "Number of affinities does not equal to thread_pool_size minus one, affinities: 1, thread_pool_size: 3",
    b"1;1;1": "Number of affinities does not equal to thread_pool_size minus one, affinities: 3, thread_pool_size: 3",
    b"": "Affinity string must not be empty",
}


@pytest.mark.parametrize("affinities", AFFINITIES)
def test_processors_are_checked(ours: Api, theirs: Api, affinities: bytes) -> None:
    words = AFFINITIES[affinities]
    for api in (ours, theirs):
        options = options_for(api)
        api.call("SetSessionLogSeverityLevel", options, 4)
        api.call("AddSessionConfigEntry", options, b"session.intra_op_thread_affinities", affinities)
        if words is None:
            runs(api, session_of(api, api.env, options))
            continue
        with pytest.raises(StatusError, match=words) as error:
            session_of(api, api.env, options)
        assert error.value.code == 1


def test_an_environments_processors_are_checked(ours: Api, theirs: Api) -> None:
    for api in (ours, theirs):
        threads = api.made("CreateThreadingOptions")
        for text in (b"", b"1" * 4097):
            with pytest.raises(StatusError, match="Size of affinity string must be between 1 and 4096") as error:
                api.call("SetGlobalIntraOpThreadAffinity", threads, text)
            assert error.value.code == 2
        api.call("SetGlobalIntraOpThreadAffinity", threads, b"1;1")
        for allow in (-1, 2):
            with pytest.raises(StatusError, match="Received invalid value for allow_spinning"):
                api.call("SetGlobalSpinControl", threads, allow)


def test_a_session_has_no_threads_of_an_environment_without(ours: Api) -> None:
    environment, options = ours.made("CreateEnv", 4, b"one"), ours.made("CreateSessionOptions")
    ours.call("DisablePerSessionThreads", options)
    with pytest.raises(StatusError, match="the env must be created with the the CreateEnvWithGlobalThreadPools API") as error:
        session_of(ours, environment, options)
    assert error.value.code == 1
