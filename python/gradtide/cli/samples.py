"""The smallest result of each study: `--fail-if` reads from it which figures a result has, before there is one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradtide.studies.buy import BuyResult
    from gradtide.studies.plan import PlanResult
    from gradtide.studies.tenants.bands import TenantsResult
    from gradtide.studies.tenants.lp import LpResult


def sample_of_tenants() -> "TenantsResult":
    """Return a small result of `gradtide tenants`."""
    from gradtide.studies import run
    from gradtide.studies.tenants.bands import tenants

    return tenants(run.sample())


def sample_of_lp() -> "LpResult":
    """Return a small result of `gradtide tenants lp`."""
    from gradtide.studies import run
    from gradtide.studies.tenants import lp

    return lp.plan_bands(run.sample())


def sample_of_buy() -> "BuyResult":
    """Return a small result of `gradtide buy`."""
    from gradtide.studies import buy, run

    job = run.sample().to_dict()["job"]
    return buy.buy({"job": job}, fabrics=["star"], collectives=["ring"])


def sample_of_plan() -> "PlanResult":
    """Return a small result of `gradtide plan`."""
    from gradtide.studies import plan, run

    return plan.plan({"job": run.sample().to_dict()["job"]})
