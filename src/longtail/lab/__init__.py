"""The lab: data sets, training, experiments and reports around the library. Needs the extra ``longtail[lab]``."""
