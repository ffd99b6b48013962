"""What can be wrong with the files that a calibration reads."""

from nkisim.errors import NkisimError


class CalibrationError(NkisimError):
    """A measurement or a binding cannot be read, or they do not fit each other."""
