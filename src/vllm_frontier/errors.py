"""Everything this package raises on purpose.

    FrontierError            one clear line for the user, exit code 2
    ├── ConfigError          a sweep's configuration is wrong
    ├── StoreError           a sweep's folder cannot be used or read
    └── EngineError          no usable engine on this machine
    Interrupted              the user or the system asked the sweep to stop (not an error)

A launch that fails is not an exception anywhere: it is an `Outcome`.
"""


class FrontierError(Exception):
    """A problem the user can solve; its text is one line that says how."""


class ConfigError(FrontierError):
    """The configuration of a sweep is wrong."""


class StoreError(FrontierError):
    """The folder of a sweep cannot be used, or what is in it cannot be read."""


class EngineError(FrontierError):
    """The engine that the sweep names cannot be used on this machine."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; the sweep stops and can be resumed.

    Derives from BaseException so that no handler for errors swallows it.
    """
