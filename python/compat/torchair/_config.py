# SPDX-License-Identifier: Apache-2.0
"""CompilerConfig: settings of the vendor's graph compiler. Any can be read and set; none has an effect here."""
from typing import Any


class CompilerConfig:
    """Settings, in sections of settings, that come to be when they are first named."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        section = CompilerConfig()
        object.__setattr__(self, name, section)
        return section

    def __repr__(self) -> str:
        return f"CompilerConfig({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"
