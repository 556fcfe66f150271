"""What part of the model a device trains: named axes, plans over them, slices, and their average."""
