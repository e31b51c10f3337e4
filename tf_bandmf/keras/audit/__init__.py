"""Audits of a run: lower bounds on its epsilon, measured with canaries."""

from tf_bandmf.keras.audit.one_run import RunAudit as RunAudit
from tf_bandmf.keras.audit.one_run import audit_run as audit_run
