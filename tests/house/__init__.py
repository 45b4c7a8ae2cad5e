"""The house: configuration, command line, status, the recording's tools, as users meet them."""
