"""A template that dies can still be stopped."""

import os
import signal

import pytest

from pecia_workers.local.process import wait_until
from pecia_workers.processes.template import TemplateDiedError
from tests.shared.forking import LastingTemplate


class Fatal:
    """An argument for a template which ends that template while a call of it is written."""

    def __init__(self, template: LastingTemplate) -> None:
        self.template = template

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        os.kill(self.template.pid, signal.SIGKILL)
        assert wait_until(lambda: not self.template.alive, 10)
        return str, ()


def test_a_template_that_ends_while_it_is_called_can_be_stopped() -> None:
    template = LastingTemplate()
    with pytest.raises(TemplateDiedError):
        template.run(len, Fatal(template))
    template.end()
