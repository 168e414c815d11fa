from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ValidationError

from experiments.schema import MISSING, schema_of


@dataclass(frozen=True)
class Price:
    prompt: float = 1.0
    output: float = 2.0


class Policy:
    def __init__(
        self,
        quantum: int,
        share: float = 0.5,
        rule: Literal["paper", "artifact"] = "paper",
        limit: int | None = None,
        price: Price = Price(3.0),
        clients: tuple[Price, ...] = (),
        clock: Any = object(),  # noqa: B008
        **others: Any,
    ) -> None: ...


def options(**changes: Any) -> Any:
    return OmegaConf.structured(schema_of(Policy, **changes))


def test_a_signature_becomes_options_with_its_defaults() -> None:
    container = OmegaConf.to_container(options(), enum_to_str=True)
    assert container == {
        "_target_": f"{__name__}.Policy",
        "quantum": MISSING,
        "share": 0.5,
        "rule": "paper",
        "limit": None,
        "price": {"_target_": f"{__name__}.Price", "prompt": 3.0, "output": 2.0},
        "clients": [],
    }


def test_drop_extra_and_defaults_change_the_options() -> None:
    changed = schema_of(
        Policy,
        drop=("price", "clients"),
        extra={"tokens": (int | None, None)},
        defaults={"quantum": 7},
        instantiable=False,
    )
    names = [field.name for field in dataclasses.fields(changed)]
    assert names == ["quantum", "share", "rule", "limit", "tokens"]
    assert OmegaConf.structured(changed).quantum == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [("quantum", "x"), ("quantum", 1.5), ("share", "x"), ("rule", "poem"), ("limit", "x")],
)
def test_a_wrong_type_is_refused(name: str, value: Any) -> None:
    config = options()
    with pytest.raises(ValidationError):
        config[name] = value


@pytest.mark.parametrize(
    ("name", "value"), [("quantum", 3), ("share", 2), ("rule", "artifact"), ("limit", None)]
)
def test_a_right_type_is_taken(name: str, value: Any) -> None:
    config = options()
    config[name] = value
    assert OmegaConf.to_container(config, enum_to_str=True)[name] == value


def test_a_misspelt_name_is_refused() -> None:
    with pytest.raises(ConfigAttributeError):
        options().quantm = 3
