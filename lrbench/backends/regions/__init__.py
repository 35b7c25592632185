"""The plans of Combiner: what a token sees directly, and into which regions the rest is cut. `sparse` shares them."""
