"""Measurements of a private model: the audit of a run, and private metrics."""

from tf_bandmf.keras.audit.one_run import RunAudit, audit_run

__all__ = ["RunAudit", "audit_run"]
