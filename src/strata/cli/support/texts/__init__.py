"""Texts that commands write or print: templates of `strata init`, explanations of words."""
