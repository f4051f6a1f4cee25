"""The folder that `clgraft caffe` puts on PYTHONPATH for the Python inside of the caffe binary."""
