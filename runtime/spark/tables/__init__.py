"""Exchange of data between Holdfast and Spark's DataFrames: the data sources of `holdfast.spark`, and `hf.SparkFrame`.

Nothing here runs jobs: that is the rest of runtime/spark.
"""
