"""What runs will compute, take and cost, before they start."""
