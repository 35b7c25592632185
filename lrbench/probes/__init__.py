"""Parts of the contract of `lrbench.testing`, one property a file; `base` is what they share."""
