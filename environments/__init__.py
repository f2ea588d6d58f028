"""Environments. Folders named ``environments`` elsewhere on the path join this package."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
