"""The op table: what every instruction is, checks, computes and costs."""
