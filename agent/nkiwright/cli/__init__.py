"""The command line: `nkiwright solve|batch|tasks|runs|config|doctor`."""
