"""Language models behind one small protocol; each provider's module is loaded when it is named."""
