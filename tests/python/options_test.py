"""Options by keyword: all of the library's, and refusals that name the nearest."""
import inspect

import numpy as np
import pytest

import verbena
from verbena import _core


def test_connect_has_every_option_of_the_library():
    keywords = set(inspect.signature(verbena.connect).parameters)
    assert keywords == set(_core.connect_options())


def test_every_option_of_connect_is_documented():
    for name in _core.connect_options():
        assert name in verbena.connect.__doc__


@pytest.mark.parametrize("option, text", [
    ({"rank": "first"}, "rank is 'first'; allowed: a number"),
    ({"expected_workers": -1}, "expected_workers is -1; allowed: a number in the range"),
    ({"colour": 1}, "unexpected keyword argument 'colour'"),
])
def test_wrong_types_of_connect(cluster, option, text):
    with pytest.raises(TypeError, match=text):
        verbena.connect(cluster, **option)


def test_wrong_values_of_connect(cluster):
    with pytest.raises(ValueError, match="progress is 'fast'; allowed: background, caller"):
        verbena.connect(cluster, progress="fast")
    with pytest.raises(verbena.InvalidArgumentError, match="expected_workers"):
        verbena.connect(cluster, expected_workers=0)
    with pytest.raises(verbena.UnavailableError, match="127.0.0.1:1"):
        verbena.connect("127.0.0.1:1", timeout=0.5)


def test_texts_with_nul_are_refused(cluster, client):
    for option in ("job", "name", "token_file"):
        with pytest.raises(ValueError, match=f"{option} is 'a.x00b'; allowed: text without the NUL"):
            verbena.connect(cluster, **{option: "a\0b"})
    for call in (lambda: client.table("a\0b", shape=2), lambda: client.open_table("a\0b"),
                 lambda: client.drop_table("a\0b")):
        with pytest.raises(ValueError, match="name is 'a.x00b'; allowed: text without the NUL"):
            call()
    for option in ("optimizer", "description", "init"):
        with pytest.raises(ValueError, match="sgd.x00b"):
            client.table("nul", shape=2, **{option: "sgd\0b"})
    with pytest.raises(ValueError, match="parameters is 'beta.x00b'"):
        client.table("nul", shape=2, parameters={"beta\0b": 1})
    assert not [table for table in client.tables() if table["name"] in ("a", "nul")]


@pytest.mark.parametrize("init, options, error, text", [
    (np.ones(3), {}, TypeError, "init has elements of type float64; allowed: float32"),
    (np.ones(3, np.float32), {"shape": 4}, ValueError, "init has 3 elements .* allowed: 4"),
    (np.ones(3, np.float32), {"dim": 3}, ValueError, "init is an array and dim is given"),
    (np.ones(3, np.float32), {"dtype": "bf16"}, TypeError, "float32; allowed: bfloat16, or uint16"),
    (np.ones((3, 2), np.float32).T, {}, ValueError, "init .* is not contiguous")])
def test_a_wrong_init_creates_no_table(client, init, options, error, text):
    with pytest.raises(error, match=text):
        client.table("wrong-init", init=init, **options)
    with pytest.raises(verbena.NotFoundError):
        client.open_table("wrong-init")


def test_integers_out_of_range(client):
    table = client.table("integers", shape=4, consistency="async")
    for name, greatest in (("first", 2**64 - 1), ("count", 2**64 - 1), ("min_version", 2**64 - 2)):
        for value in (-1, greatest + 1):
            with pytest.raises(ValueError, match=f"{name} is {value}; allowed: 0 to {greatest}"):
                client.pull(table, **{name: value})
    for shape in (-1, 2**62, (2**40, 2**40), (2, -1)):
        with pytest.raises(ValueError, match="shape is .*; allowed: 0 to"):
            client.empty(shape)


def test_descriptors_of_table_options():
    options = {option["keyword"]: option for option in verbena.table_options()}
    assert options["schedule_period"]["name"] == "optimizer.schedule.period"
    assert options["dtype"]["allowed"].startswith("f32, bf16, f16")
    assert options["hot_bytes"]["unit"] == "bytes"
    assert all(option["meaning"] for option in options.values())


def test_options_of_a_table_by_keyword(client):
    table = client.table(
        "optioned", shape=[4], optimizer="adam", parameters={"beta1": 0.8, "epsilon": 1e-7},
        rate=0.001, consistency="ssp", staleness=3, reduction="sum", push_codec="int8",
        schedule="piecewise", schedule_boundaries=[10, 20], schedule_rates=[0.1, 0.05],
        clip_value=1.5, description="by keyword", chunk_bytes=1024)
    info = table.info
    assert info["consistency"] == "ssp" and info["staleness"] == 3
    assert info["push_codec"] == "int8" and info["optimizer"] == "adam" and info["rate"] == 0.001
    assert info["description"] == "by keyword" and info["chunk_elements"] == 256
    rows = client.table("optioned-rows", dim=4, admission="min_count", admission_min_count=2,
                        eviction="lru", eviction_max_rows=10**6, row_dtype="bf16",
                        stochastic_rounding=True, initializer="uniform", initializer_a=-0.1,
                        initializer_b=0.1, initializer_seed=2**63)
    assert rows.dim == 4
    with pytest.raises(verbena.AlreadyExistsError, match="eviction.max_rows"):
        client.table("optioned-rows", dim=4, admission="min_count", admission_min_count=2,
                     eviction="lru", eviction_max_rows=7, row_dtype="bf16",
                     stochastic_rounding=True, initializer="uniform", initializer_a=-0.1,
                     initializer_b=0.1, initializer_seed=2**63)


def test_an_unknown_option_names_the_nearest(client):
    with pytest.raises(TypeError, match="no option 'push_codek'; the nearest: push_codec"):
        client.table("unknown", shape=3, push_codek="int8")


def test_wrong_values_have_the_librarys_text(client):
    with pytest.raises(verbena.InvalidArgumentError, match="consistency.*sync, async, ssp"):
        client.table("wrong", shape=3, consistency="eventual")
    with pytest.raises(verbena.InvalidArgumentError, match="chunk_bytes"):
        client.table("wrong", shape=3, chunk_bytes=7)
    with pytest.raises(verbena.InvalidArgumentError, match="clip_value"):
        client.table("wrong", shape=3, clip_value=-1)
    with pytest.raises(TypeError, match="staleness is <object"):
        client.table("wrong", shape=3, staleness=object())
