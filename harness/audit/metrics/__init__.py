"""What activation gates measure, a file for each kind of arm, and how a metric is declared."""
