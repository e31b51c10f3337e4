"""Measurements of a private model: the audit of a run, and private metrics."""

from tf_bandmf.keras.audit.one_run import RunAudit as RunAudit
from tf_bandmf.keras.audit.one_run import audit_run as audit_run
