"""What a curve of times or bytes over lengths says: exponents, cliffs, crossovers, budgets. numpy and scipy only."""
