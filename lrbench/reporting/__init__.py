"""From records to what people read. No torch anywhere below."""
