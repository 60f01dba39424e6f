"""Loggers of the package: the forms of TORCH_LOGS, and functions to change levels in a program.

    TORCH_LOGS="+spyre.inductor"             debug messages of the compiler
    TORCH_LOGS="spyre"                       info messages of everything
    TORCH_LOGS="spyre.inductor:WARNING"      a level by name
    TORCH_LOGS="+spyre,-spyre.execution"     all but one component

A component without a setting of its own has its parent's; without any, WARNING. Entries for other
components of PyTorch may stand beside ours. An entry that makes no sense is a warning, never an
error: `import torch` has to work.

    >>> from torch_spyre import logs
    >>> logs.enable("spyre.inductor.stickify", "DEBUG")
    >>> logs.get_config_source("spyre.inductor.stickify")
    'set in the program'
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping

from torch._logging import _internal
from torch._logging._internal import register_log

COMPONENTS = (
    "spyre",
    "spyre.inductor",
    "spyre.inductor.lowering",
    "spyre.inductor.stickify",
    "spyre.inductor.codegen",
    "spyre.inductor.passes",
    "spyre.runtime",
    "spyre.execution",
    "spyre.device",
)

OFF = logging.CRITICAL + 10
"""Above every level: nothing is shown."""

_LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": OFF,
}
_sources: dict[str, str] = {}
_file: logging.Handler | None = None


def register() -> None:
    """Make the components known to TORCH_LOGS and torch._logging.set_logs.

    During `import torch` this comes before torch reads the variable; patches.py has the way in.
    """
    for name in COMPONENTS:
        register_log(name, name)
    for component, level in _old_settings(os.environ).items():
        _internal.log_state.enable_log(component, level)


def get_logger(component: str) -> logging.Logger:
    """The logger of a component, e.g. `get_logger("spyre.execution")`."""
    if component not in COMPONENTS:
        raise ValueError(f"unknown component '{component}'; known are {', '.join(COMPONENTS)}")
    return logging.getLogger(component)


# ---- In a program -------------------------------------------------------------------------------


def list_components() -> list[str]:
    """Names of all components, parents before their children."""
    return list(COMPONENTS)


def get_log_level(component: str = "spyre") -> int:
    """The level that holds for a component, as a number of the logging module."""
    return get_logger(component).getEffectiveLevel()


def set_log_level(component: str, level: int | str) -> None:
    """Set the level of a component and of those below it that have none of their own."""
    get_logger(component).setLevel(parse_level(level))
    _sources[component] = "set in the program"


def enable(component: str = "spyre", level: int | str = logging.INFO) -> None:
    """Show the messages of a component, from INFO on if nothing else is said."""
    set_log_level(component, level)


def disable(component: str = "spyre") -> None:
    """Show nothing of a component."""
    set_log_level(component, OFF)


def set_log_file(path: str | os.PathLike[str] | None) -> None:
    """Write messages of all components to a file as well; None ends that."""
    global _file
    # Each logger has its own handlers: torch switches propagation off.
    if _file is not None:
        for name in COMPONENTS:
            logging.getLogger(name).removeHandler(_file)
        _file.close()
        _file = None
    if path is not None:
        _file = logging.FileHandler(path)
        _file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        for name in COMPONENTS:
            logging.getLogger(name).addHandler(_file)


def get_effective_config() -> dict[str, str]:
    """The level of every component, by name."""
    return {name: level_name(get_log_level(name)) for name in COMPONENTS}


def get_config_source(component: str = "spyre") -> str:
    """Where the level of a component comes from, e.g. `TORCH_LOGS` or `default`."""
    get_logger(component)
    name = component
    while name:
        if name in _sources and logging.getLogger(name).level != logging.NOTSET:
            return _sources[name] if name == component else f"{_sources[name]} for {name}"
        name = name.rpartition(".")[0]
    return "default"


def get_config_for_cpp() -> dict[str, int]:
    """The levels as numbers, for the C++ side: 10 is debug, 20 info, 30 warning, 60 off."""
    return {name: get_log_level(name) for name in COMPONENTS}


def parse_level(level: int | str) -> int:
    """A level from its name or number."""
    if isinstance(level, int):
        return level
    name = level.strip().upper()
    if name.isdigit():
        return int(name)
    if name not in _LEVELS:
        raise ValueError(f"unknown level '{level}'; known are {', '.join(_LEVELS)}")
    return _LEVELS[name]


def level_name(level: int) -> str:
    """The name of a level."""
    return "OFF" if level >= OFF else logging.getLevelName(level)


# ---- TORCH_LOGS ---------------------------------------------------------------------------------


def take_settings(settings: str) -> tuple[str, dict[str, int]]:
    """Our entries of a TORCH_LOGS value as levels, and the value without them."""
    others, levels = [], {}
    for entry in (e.strip() for e in settings.split(",")):
        name = entry.lstrip("+-").partition(":")[0]
        if name != "spyre" and not name.startswith("spyre."):
            others.append(entry)
            continue
        level = _level_of(entry, name)
        if level is not None:
            levels[name] = level
            _sources[name] = "TORCH_LOGS"
    for name, level in _old_settings(os.environ, warn=False).items():
        levels.setdefault(name, level)
    return ",".join(others), levels


def _level_of(entry: str, name: str) -> int | None:
    if name not in COMPONENTS:
        known = ", ".join(COMPONENTS)
        warnings.warn(f"TORCH_LOGS: '{entry}' is ignored, components are {known}", stacklevel=2)
        return None
    _, colon, level = entry.partition(":")
    if not colon:
        return {"+": logging.DEBUG, "-": OFF}.get(entry[0], logging.INFO)
    try:
        return parse_level(level)
    except ValueError as problem:
        warnings.warn(f"TORCH_LOGS: '{entry}' is ignored, {problem}", stacklevel=2)
        return None


# ---- Variables of earlier versions --------------------------------------------------------------

_OLD = {
    "SPYRE_INDUCTOR_LOG": 'TORCH_LOGS="spyre.inductor"',
    "SPYRE_INDUCTOR_LOG_LEVEL": 'TORCH_LOGS="spyre.inductor:LEVEL"',
    "SPYRE_LOG_FILE": "TORCH_LOGS_OUT",
}


def _old_settings(environ: Mapping[str, str], *, warn: bool = True) -> dict[str, int]:
    """What the deprecated variables ask for; they warn, and TORCH_LOGS wins over them."""
    given = {name: environ[name].strip() for name in _OLD if environ.get(name, "").strip()}
    if warn:
        for name in given:
            text = f"{name} is deprecated, use {_OLD[name]}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        try:
            set_log_file(given.get("SPYRE_LOG_FILE"))
        except OSError as problem:
            warnings.warn(f"SPYRE_LOG_FILE: {problem}", stacklevel=2)
    switch = given.get("SPYRE_INDUCTOR_LOG", "").lower()
    level = given.get("SPYRE_INDUCTOR_LOG_LEVEL", "")
    if switch in ("0", "false", "off", "no") or not (switch or level):
        return {}
    _sources.setdefault("spyre.inductor", "SPYRE_INDUCTOR_LOG")
    try:
        return {"spyre.inductor": parse_level(level or logging.INFO)}
    except ValueError as problem:
        warnings.warn(f"SPYRE_INDUCTOR_LOG_LEVEL: {problem}", stacklevel=2)
        return {"spyre.inductor": logging.INFO}
