"""What scripts logged, for TensorBoard, MLflow and Weights & Biases."""
