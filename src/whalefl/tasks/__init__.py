"""What is learnt: data, a model with named axes, and how the data is split over devices."""
